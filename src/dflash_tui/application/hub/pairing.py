"""Which drafter belongs to which target: headers show which are compatible, names which of those is intended."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dflash_core.arch.folders.opening import open_model
from dflash_core.clean import one_line
from dflash_core.config import generation, target_config
from dflash_core.drafters.base import TargetHeader
from dflash_core.drafters.registry import open_draft
from dflash_core.errors import DFlashError
from dflash_core.formats.gguf import GGUFFile
from dflash_tui.application.hub.header import HeaderCache, ModelHeader

# Words in names that do not identify the model: kinds of files, drafters and weights.
_COMMON = re.compile(
    r"d?flash\d*|dspark|draft(er)?|mtp|nextn|head|gguf|instruct|it|ud|model|i?q\d\w*|b?f\d+|b\d+|k|m|s|xl"
)


@dataclass(frozen=True, slots=True)
class DrafterFile:
    """A drafter that is compatible by its header. `belongs`: by its name it was made for this target, not a sibling."""

    path: Path
    name: str
    belongs: bool


@dataclass(frozen=True, slots=True)
class ReadHeader:
    """A file or folder whose header was read. `key`: its cache key."""

    path: Path
    name: str
    header: ModelHeader
    key: str


def drafters_of(target: ReadHeader, drafts: Iterable[ReadHeader], cache: HeaderCache) -> tuple[DrafterFile, ...]:
    """Compatible drafters, the one that belongs to the target first. The target is opened only for new pairs."""
    found, opened = list[tuple[tuple[bool, float, bool, str], DrafterFile]](), list[GGUFFile]()
    for draft in drafts:
        if draft.header.hidden and target.header.hidden and draft.header.hidden != target.header.hidden:
            continue
        both = f"{target.key}\n{draft.key}"
        if both not in cache.pairs:
            try:
                opened = opened or [open_model(target.path)]
                _check(opened[0], draft.path)
                cache.pairs[both] = ""
            except (DFlashError, OSError) as error:
                cache.pairs[both] = one_line(str(error)) or type(error).__name__
        if not cache.pairs[both]:
            made_for, here = (generation(f"{one.name} {one.header.title}") for one in (draft, target))
            sizes, own = (_sizes(f"{one.name} {one.header.title}") for one in (draft, target))
            foreign = bool((made_for and here and made_for != here) or (sizes and own and sizes.isdisjoint(own)))
            alike, near = likeness(draft.name, f"{target.name} {target.header.title}"), _near(draft.path, target.path)
            drafter = DrafterFile(draft.path, one_line(draft.name), not foreign and (near or alike > 0))
            found.append(((foreign, -alike, not near, draft.name), drafter))
    return tuple(drafter for _, drafter in sorted(found, key=lambda one: one[0]))


def likeness(draft: str, target: str) -> float:
    """The share of a drafter's identifying words (of Qwen3-8B-DFlash-b16: qwen3 and 8b) in the target's name."""
    words, others = _words(draft), _words(target)
    return len(words & others) / len(words) if words else 0.0


def _words(name: str) -> set[str]:
    parts = re.split(r"[^a-z0-9.]+", name.lower().removesuffix(".gguf"))
    return {part for part in parts if part and not _COMMON.fullmatch(part)}


def _sizes(name: str) -> set[str]:
    """The number of parameters in a name: 27b, 35b."""
    return set(re.findall(r"(?<![a-z0-9.])\d+(?:\.\d+)?b(?![a-z0-9])", name.lower()))


def _near(draft: Path, target: Path) -> bool:
    return draft.absolute().parent == target.absolute().parent


def _check(target: GGUFFile, draft: Path) -> None:
    """Raises DFlashError if they are not compatible."""
    open_draft(draft, TargetHeader(target, target_config(target)))
