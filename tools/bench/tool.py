"""Runs a module of this package as a program."""

from __future__ import annotations

import sys
from collections.abc import Callable

from dflash_core.errors import DFlashError


def run_tool(main: Callable[[], None]) -> None:
    """Run a command line. A refusal is one line on stderr, and exit code 1."""
    try:
        main()
    except DFlashError as error:
        sys.exit(str(error))
