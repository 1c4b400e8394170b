"""The kinds of drafters. A kind is a name and what opens it; a new one adds its own file and its line here."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dflash_core.drafters.base import DraftOpener, DraftTarget, OpenedDraft


@dataclass(frozen=True, slots=True)
class Kind:
    """`opener`: module:function, imported when it is asked for. `summary`: what it does, in a line for users."""

    opener: str
    summary: str


NAMED: dict[str, Kind] = {
    "text": Kind("dflash_core.drafters.text:open_text", "copies what followed the last tokens the last time"),
}
"""Kinds that need no file, by the name that stands where a file would."""
FILES = Kind("dflash_core.drafters.dflash:open_dflash", "DFlash: denoises a block of masks behind the context")
"""What opens a file or a folder."""


def is_named(source: str | Path) -> bool:
    """Whether `source` names a kind that needs no file; a file of that name is reached by its whole path."""
    return str(source) in NAMED


def open_draft(source: str | Path, target: DraftTarget) -> OpenedDraft:
    """Open a drafter by the name of its kind, or by its file or folder, and read no more than its header.

    Raises FormatError, UnsupportedError, MismatchError.
    """
    module, _, name = (NAMED[str(source)] if is_named(source) else FILES).opener.partition(":")
    opener: DraftOpener = getattr(importlib.import_module(module), name)
    return opener(source, target)
