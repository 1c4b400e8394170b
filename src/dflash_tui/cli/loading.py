"""Loads a pair for a command. Importing this imports torch, so commands do it when a pair is to be loaded."""

from __future__ import annotations

from pathlib import Path

from dflash_core.conversation import Conversation
from dflash_core.engine import Engine
from dflash_core.lab.experiment import Laboratory
from dflash_core.loading import load_draft
from dflash_tui.application.engine_session import begin, laboratory, load_engine, with_recommended
from dflash_tui.application.session import LoadRequest
from dflash_tui.terminal.output import Notes

__all__ = ["begun_conversation", "load_with_notes", "loaded_laboratory", "with_drafter", "with_recommended"]


def load_with_notes(request: LoadRequest, notes: Notes) -> Engine:
    """As `load_engine`; prints one line for each thing the user should know. Raises DFlashError."""
    engine, worth_knowing = load_engine(request, notes.progress, "Ctrl+C")
    for note in worth_knowing:
        notes.line(f"note: {note}")
    return engine


def begun_conversation(request: LoadRequest, notes: Notes, system: str) -> tuple[Engine, Conversation]:
    """A loaded pair and an empty conversation with it. Raises DFlashError."""
    engine = load_with_notes(request, notes)
    conversation = Conversation(engine, engine.target.tokenizer, engine.target.template, system)
    begin(conversation, request, engine)
    return engine, conversation


def loaded_laboratory(request: LoadRequest, notes: Notes) -> tuple[Engine, Laboratory]:
    """A loaded pair, and where its experiments run. Raises DFlashError."""
    engine = load_with_notes(request, notes)
    return engine, laboratory(engine, request.title())


def with_drafter(engine: Engine, draft: Path, kv: str) -> Engine:
    """The target of `engine` with another drafter. Raises DFlashError."""
    return Engine(engine.target, load_draft(draft, engine.target), context_length=engine.context_length, kv=kv)
