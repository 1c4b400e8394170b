"""Asks for a file and writes rows of figures to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from textual.app import App

from dflash_core.errors import DFlashError
from dflash_core.lab.export import ROWS, check_path, write_rows
from dflash_tui.application.new_file import new_path
from dflash_tui.widgets.dialogs import LineScreen


def export_rows(
    app: App[Any], rows: Sequence[Mapping[str, Any]], file: str, say: Callable[[str | Exception], None]
) -> None:
    """Offer the name `file`, and write where the user says."""

    def named(name: str | None) -> None:
        if not name:
            return
        try:
            path = check_path(new_path(name), ROWS)
            write_rows(rows, path)
        except DFlashError as error:
            say(error)
        else:
            say(f"written: {path}")

    if rows:
        app.push_screen(LineScreen(f"Write to which file? Its ending decides: {' '.join(ROWS)}", file), named)
    else:
        say("nothing to write yet")
