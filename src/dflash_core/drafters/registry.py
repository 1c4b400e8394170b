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
    "mtp": Kind("dflash_core.drafters.mtp:open_mtp", "the MTP head in the target's own file"),
    "text": Kind("dflash_core.drafters.text:open_text", "copies what followed the last tokens the last time"),
}
"""Kinds that need no file, by the name that stands where a file would."""
DFLASH = Kind("dflash_core.drafters.dflash:open_dflash", "DFlash: denoises a block of masks behind the context")
MTP = Kind("dflash_core.drafters.mtp:open_mtp", "an MTP head in a file of its own")


def holds_mtp(path: Path) -> bool:
    """Whether a file says of itself that it has MTP blocks; those of a whole model count too."""
    if path.is_dir() or path.suffix != ".gguf":
        return False
    from dflash_core.arch.registry import ARCHITECTURES
    from dflash_core.formats.gguf import open_gguf

    metadata = open_gguf(path).metadata
    nextn = metadata.get(f"{metadata.get('general.architecture')}.nextn_predict_layers")
    return metadata.get("general.architecture") in ARCHITECTURES and isinstance(nextn, int) and nextn > 0


def is_named(source: str | Path) -> bool:
    """Whether `source` names kinds that need no file; a file of that name is reached by its whole path."""
    return all(part in NAMED for part in parts(source))


def parts(source: str | Path) -> tuple[str, ...]:
    """The drafters that `source` names: one, or several joined by "+"; a file that has it in its name is one."""
    text = str(source)
    return tuple(text.split("+")) if "+" in text and not Path(text).exists() else (text,)


def missing(source: str | Path) -> str | None:
    """What of `source` is neither a kind nor a file or folder."""
    return next((part for part in parts(source) if part not in NAMED and not Path(part).exists()), None)


def open_draft(source: str | Path, target: DraftTarget) -> OpenedDraft:
    """Open a drafter by the name of its kind, or by its file or folder, and read no more than its header; several that
    are joined by "+" are opened together.

    Raises FormatError, UnsupportedError, MismatchError.
    """
    if len(several := parts(source)) > 1:
        from dflash_core.drafters.several import open_several

        return open_several(target, [open_draft(part, target) for part in several])
    kind = NAMED[str(source)] if is_named(source) else MTP if holds_mtp(Path(source)) else DFLASH
    module, _, name = kind.opener.partition(":")
    opener: DraftOpener = getattr(importlib.import_module(module), name)
    return opener(source, target)
