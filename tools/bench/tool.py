"""Runs a module of this package as a program; the options and the report of those that open the app."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dflash_core.errors import DFlashError
from dflash_core.knobs import Knobs, parse_settings
from dflash_tui.application.session import LoadRequest
from dflash_tui.terminal.output import Notes, check_file, write_json, write_json_file, write_out


def run_tool(main: Callable[[], None]) -> None:
    """Run a command line. A refusal is one line on stderr, and exit code 1."""
    try:
        main()
    except DFlashError as error:
        sys.exit(str(error))


def add_options(parser: argparse.ArgumentParser, *, rounds: int) -> None:
    """The pair that the app opens, how often it is measured, and where the figures go."""
    add = parser.add_argument
    add("--target", type=Path, metavar="FILE", help="the model (the demo pair)")
    add("--draft", type=Path, metavar="FILE", help="its drafter")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter; may be repeated")
    add("--rounds", type=int, default=rounds, metavar="N", help=f"how often each is measured ({rounds})")
    add("--out", type=Path, metavar="FILE", help="write everything measured as JSON")
    add("--json", action="store_true", help="one JSON object on stdout")


def request_of(args: argparse.Namespace) -> LoadRequest:
    """The pair that the options name. Raises DFlashError for options that would fail after minutes."""
    if args.rounds < 1:
        raise DFlashError(f"--rounds {args.rounds}: expected 1 or more")
    if args.out is not None:
        check_file(args.out)
    changes = parse_settings(dict(one.partition("=")[::2] for one in args.set))
    return LoadRequest(args.target, args.draft, args.device, Knobs().replace(**changes))


def report(figures: Mapping[str, Any], text: str, args: argparse.Namespace, notes: Notes) -> None:
    """Print what was measured, then write it to --out."""
    if args.json:
        write_json(figures)
    else:
        write_out(text + "\n")
    write_json_file(args.out, figures, notes)
