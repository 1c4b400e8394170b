"""The kinds of drafters. A kind is a name and an opener; a new one adds its own file and its line here."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dflash_core.drafters.base import DraftOpener, DraftTarget, OpenedDraft


@dataclass(frozen=True, slots=True)
class Kind:
    """`opener`: module:function, imported on first use. `summary`: what it does, in a line for users."""

    opener: str
    summary: str


NAMED: dict[str, Kind] = {
    "mtp": Kind("dflash_core.drafters.mtp:open_mtp", "the MTP head in the target's own file"),
    "text": Kind("dflash_core.drafters.text:open_text", "copies what followed the last tokens the last time"),
}
"""Kinds that need no file, by the name that is given in place of a file."""
DFLASH = Kind("dflash_core.drafters.dflash:open_dflash", "DFlash: denoises a block of masks after the context")
HERE = Path()
MTP = Kind("dflash_core.drafters.mtp:open_mtp", "an MTP head in a file of its own")


def holds_mtp(path: Path) -> bool:
    """Whether a file's header has MTP blocks; those of a complete model count too."""
    if path.is_dir() or path.suffix != ".gguf":
        return False
    from dflash_core.arch.registry import ARCHITECTURES
    from dflash_core.formats.gguf import architecture_of, open_gguf

    architecture = architecture_of(path)
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        return False
    nextn = open_gguf(path).metadata.get(f"{architecture}.nextn_predict_layers")
    return isinstance(nextn, int) and nextn > 0


def is_named(source: str | Path) -> bool:
    """Whether `source` names kinds that need no file; a file of that name is reached by its whole path."""
    return all(part in NAMED for part in parts(source))


def parts(source: str | Path, folder: Path = HERE) -> tuple[str, ...]:
    """The drafters that `source` names: one, or several joined by "+". A path in `folder` whose name has a
    plus counts as one."""
    cut, found = str(source).split("+"), []
    while cut:
        ends = (end for end in range(len(cut), 1, -1) if (folder / Path("+".join(cut[:end])).expanduser()).exists())
        end = next(ends, 1)
        found.append("+".join(cut[:end]))
        cut = cut[end:]
    return tuple(found)


def resolved(source: str | Path, folder: Path) -> Path:
    """`source` with the absolute path of every file or folder in it, relative to `folder`. Raises RuntimeError for the
    home of an unknown user."""
    found = parts(source, folder)
    whole = (part if part in NAMED or not part else str(folder / Path(part).expanduser()) for part in found)
    return Path("+".join(whole))


def missing(source: str | Path) -> str | None:
    """The part of `source` that is neither a kind nor a file or folder."""
    unknown = (part for part in parts(source) if part not in NAMED)
    return next((part or "+" for part in unknown if not (part and Path(part).exists())), None)


def open_draft(source: str | Path, target: DraftTarget) -> OpenedDraft:
    """Open a drafter by the name of its kind, or by its file or folder, and read no more than its header; several that
    are joined by "+" are opened together.

    Raises FormatError, UnsupportedError, MismatchError, and ContextError for two of one kind.
    """
    if len(several := parts(source)) > 1:
        from dflash_core.drafters.several import open_several

        return open_several(target, [open_draft(part, target) for part in several])
    kind = NAMED[str(source)] if is_named(source) else MTP if holds_mtp(Path(source)) else DFLASH
    module, _, name = kind.opener.partition(":")
    opener: DraftOpener = getattr(importlib.import_module(module), name)
    return opener(source, target)
