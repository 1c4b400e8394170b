"""Drafters by their names and files: which kind a source names, and how it is opened."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_core.drafters.kinds import FORMER, KINDS, Kind, needs_no_file
from dflash_core.errors import Code, UnsupportedError

if TYPE_CHECKING:
    from dflash_core.arch.spec import ModelSpec
    from dflash_core.drafters.draft import Draft, DraftOpener, DraftTarget
    from dflash_core.formats.gguf import GGUFFile

HERE = Path()
_SEVERAL = "dflash_core.drafters.draft:several"


def _code(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def is_named(source: str | Path) -> bool:
    """Whether `source` names only kinds that need no file."""
    return all(needs_no_file(part) for part in parts(source))


def parts(source: str | Path, folder: Path = HERE) -> tuple[str, ...]:
    """The drafters that `source` names: one, or several joined by "+". A path in `folder` whose name has a
    plus counts as one."""
    cut, found = str(source).split("+"), []
    while cut:
        ends = (end for end in range(len(cut), 1, -1) if (folder / Path("+".join(cut[:end])).expanduser()).exists())
        end = next(ends, 1)
        part = "+".join(cut[:end])
        found.append(FORMER.get(part, part))
        cut = cut[end:]
    return tuple(found)


def resolved(source: str | Path, folder: Path) -> Path:
    """`source` with the absolute path of every file or folder in it, relative to `folder`. Raises RuntimeError for the
    home of an unknown user."""
    found = parts(source, folder)
    whole = (part if not part or needs_no_file(part) else str(folder / Path(part).expanduser()) for part in found)
    return Path("+".join(whole))


def missing(source: str | Path) -> str | None:
    """The part of `source` that is neither a kind nor a file or folder."""
    unknown = (part for part in parts(source) if not needs_no_file(part))
    return next((part or "+" for part in unknown if not (part and Path(part).exists())), None)


def kind_of(source: str | Path) -> Kind:
    """The kind of one drafter, given by name or by its file or folder. Raises FormatError."""
    if needs_no_file(str(source)):
        return KINDS[str(source)]
    recognised = (kind for kind in KINDS.values() if kind.recognises and _code(kind.recognises)(Path(source)))
    return next(recognised, KINDS["dflash"])


def own_kind(file: GGUFFile, spec: ModelSpec) -> str | None:
    """The kind of drafter that a target's own file has."""
    return next((kind.name for kind in KINDS.values() if kind.inside and _code(kind.inside)(file, spec)), None)


def loader(kind: str, machine: str) -> Any:
    """What makes a drafter of this kind from its weights on CPU or CARD. Raises UnsupportedError."""
    loaders = KINDS[kind].loaders
    if machine not in loaders:
        raise UnsupportedError(
            f"the {kind} drafter does not run on {machine}, expected {' or '.join(loaders)}; choose that device",
            code=Code.NOT_ON_THIS_DEVICE,
        )
    return _code(loaders[machine])


def open_draft(source: str | Path, target: DraftTarget) -> Draft:
    """Open a drafter by the name of its kind, or by its file or folder, and read no more than its header; several that
    are joined by "+" are opened together.

    Raises FormatError, UnsupportedError, MismatchError, and ContextError for two of one kind.
    """
    first, *more = parts(source)
    if more:
        together: Draft = _code(_SEVERAL)(target, [open_draft(part, target) for part in (first, *more)])
        return together
    opener: DraftOpener = _code(kind_of(first).opener)
    return opener(first, target)
