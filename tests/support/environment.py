"""The environment that tests run in, and the programs that they start: the same in every terminal, shell and CI."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping

# Prefixes of variables that affect the app, the libraries that it draws and downloads with, and the programs it starts.
FAMILIES = ("DFLASH_TUI_", "HF_", "HUGGINGFACE_", "TEXTUAL", "TTY_", "SSH_")
NAMES = frozenset(
    (
        *("COLUMNS", "LINES", "COLORTERM", "FORCE_COLOR", "NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "ESCDELAY"),
        *("TMUX", "STY", "DISPLAY", "WAYLAND_DISPLAY", "EDITOR", "VISUAL", "PAGER"),
        *("LLAMA_CACHE", "OLLAMA_MODELS"),
        "PYTHONDONTWRITEBYTECODE",  # a program that compiles all its modules again takes a quarter more
    )
)
HERE = "localhost,127.0.0.1"  # never through a proxy
# Programs and the workers of xdist go through sets of texts in one order; with `-m full` in another each time.
FIXED = {"TERM": "xterm-256color", "TZ": "UTC", "no_proxy": HERE, "NO_PROXY": HERE, "PYTHONHASHSEED": "0"}


def of_tests(environment: Mapping[str, str]) -> dict[str, str]:
    """The user's environment without variables that affect tests, and with those that are set for all tests."""
    kept = {name: value for name, value in environment.items() if name not in NAMES and not name.startswith(FAMILIES)}
    return kept | FIXED


def take_over() -> None:
    """Apply it to this process and those that it starts, before anything is imported that reads it."""
    kept = of_tests(os.environ)
    for name in {*os.environ, *NAMES} - kept.keys():
        os.environ.pop(name, None)
        os.unsetenv(name)  # readline sets the size of its terminal for programs alone, unseen here
    os.environ.update(kept)
    sys.dont_write_bytecode = False
    time.tzset()
