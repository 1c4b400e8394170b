"""A pair as typed: the path of a model, and its drafter by path or by the name of its kind."""

from __future__ import annotations

from pathlib import Path

from dflash_core.drafters.registry import missing
from dflash_core.errors import DFlashError


def typed_pair(target: str, draft: str = "") -> tuple[Path, Path | None]:
    """Both paths with ~ expanded; an empty `draft` means none. Raises DFlashError if one does not
    exist."""
    there = _path(target)
    if not there.exists():
        raise DFlashError(f"{there}: no such file or folder; check the path")
    if not draft:
        return there, None
    drafts = _path(draft)
    if (gone := missing(drafts)) is not None:
        raise DFlashError(f"{gone}: no such file or folder; check the path")
    return there, drafts


def _path(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # ~ of a user that does not exist
        raise DFlashError(f"{text}: {error}") from None
