"""Loads a pair for a command. Importing this imports torch."""

from __future__ import annotations

from dflash_core.engine import Engine
from dflash_tui.application.engine_session import load_engine
from dflash_tui.application.session import LoadRequest
from dflash_tui.terminal.output import Notes


def load_with_notes(request: LoadRequest, notes: Notes) -> Engine:
    """As `load_engine`; prints one line for each thing the user should know. Raises DFlashError."""
    engine, worth_knowing = load_engine(request, notes.progress, "Ctrl+C")
    for note in worth_knowing:
        notes.line(f"note: {note}")
    return engine
