"""The command line: one module for its syntax, one for each command."""

from dflash_tui.cli.command_line import main

__all__ = ["main"]
