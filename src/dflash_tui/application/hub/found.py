"""What a search for models finds. Plain data, which screens use before anything is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_tui.application.amounts import counted

if TYPE_CHECKING:
    from dflash_tui.application.hub.header import ModelHeader


@dataclass(frozen=True, slots=True)
class DrafterFile:
    """A drafter that is compatible by its header. `belongs`: by its name it was made for this target, not a sibling."""

    path: Path
    name: str
    belongs: bool


@dataclass(frozen=True, slots=True)
class Found:
    """A supported model or a drafter. `size`: bytes of all its files; `drafters`: None until they have been searched
    for; `key`: of its header in the cache."""

    path: Path
    name: str
    where: str
    header: ModelHeader
    size: int
    drafters: tuple[DrafterFile, ...] | None = None
    key: str = ""

    @property
    def draft(self) -> Path | None:
        return next((one.path for one in self.drafters or () if one.belongs), None)


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A file that is not offered. `why` is a line; `broken`: a supported model that is damaged."""

    path: Path
    why: str
    broken: bool


def counted_others(others: Iterable[PassedOver]) -> tuple[str, list[PassedOver]]:
    """The number of files of each kind that is not a chat model, in words; and the damaged models."""
    found = list(others)
    counts = Counter(one.why for one in found if not one.broken)
    return ", ".join(counted(count, why) for why, count in counts.most_common()), [one for one in found if one.broken]
