"""Models on this machine, as they are found: first the kind of each file, then the drafters that match it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_core.clean import one_line
from dflash_tui.application.hub.header import Header, key_of, read_header, size_of
from dflash_tui.application.hub.places import Place
from dflash_tui.application.hub.shelf import Shelf
from dflash_tui.application.hub.walk import Candidate, TooMany, walk

if TYPE_CHECKING:
    from dflash_tui.application.hub.pairing import Drafter, Read


@dataclass(frozen=True, slots=True)
class Found:
    """A supported model. `size`: bytes of all its files; `drafters`: None until they have been searched for."""

    path: Path
    name: str
    where: str
    header: Header
    size: int
    drafters: tuple[Drafter, ...] | None = None

    @property
    def draft(self) -> Path | None:
        """The drafter that belongs to it, if one was found."""
        return next((one.path for one in self.drafters or () if one.belongs), None)


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A file that is not offered. `why` is a line; `broken`: a supported model that is damaged."""

    path: Path
    why: str
    broken: bool


def look(
    where: Sequence[Place], shelf: Shelf, stopping: Callable[[], bool] = lambda: False
) -> Iterator[Found | PassedOver]:
    """Every file once, under the first place that contains it; then each model again with its drafters."""
    from dflash_tui.application.hub.pairing import (  # it imports numpy, which the app's first frame does not need
        Read,
        drafters_of,
    )

    seen, targets, drafts = set[Path](), list[tuple[Found, Read]](), list[Read]()
    for place in where:
        for one in walk(place, stopping):
            if isinstance(one, TooMany):
                yield PassedOver(place.folder, f"{place.folder}: too many files; not all were checked", broken=True)
                continue
            real = one.path.resolve()
            if real in seen:
                continue
            seen.add(real)
            read, size = _read(one, shelf)
            if stopping():
                return
            if isinstance(read, PassedOver):
                yield read
            elif read is not None and read.header.kind == "draft":
                drafts.append(read)
            elif read is not None:
                found = Found(one.path, one_line(one.name), place.name, read.header, size)
                targets.append((found, read))
                yield found
    for found, read in targets:
        if stopping():
            return
        yield replace(found, drafters=drafters_of(read, drafts, shelf))
    shelf.keep()


def counted_others(others: Iterable[PassedOver]) -> tuple[str, list[PassedOver]]:
    """The number of files of each kind that is not a chat model, in words; and the damaged models."""
    found = list(others)
    counts = Counter(one.why for one in found if not one.broken)
    return ", ".join(f"{count} {why}" for why, count in counts.most_common()), [one for one in found if one.broken]


def of_name(name: str, where: Sequence[Place]) -> Path | None:
    """A file or folder with that name, found without reading headers."""
    return next(
        (
            one.path
            for place in where
            for one in walk(place)
            if isinstance(one, Candidate) and name in (one.path.name, one.name)
        ),
        None,
    )


def _read(one: Candidate, shelf: Shelf) -> tuple[Read | PassedOver | None, int]:
    """Its header, from the shelf if the file has not changed, and its size in bytes."""
    try:
        key, size = key_of(one.path, folder=one.folder), size_of(one.path, folder=one.folder)
    except OSError as error:  # a broken link, or deleted since
        return PassedOver(one.path, one_line(f"{one.path} cannot be read: {error.strerror}"), broken=True), 0
    header = shelf.headers.get(key)
    if header is None:
        header = read_header(one.path, folder=one.folder)
        if header is None:
            return None, 0
        shelf.headers[key] = header
    if header.kind in ("target", "draft"):
        from dflash_tui.application.hub.pairing import Read

        return Read(one.path, one.name, header, key), size
    return PassedOver(one.path, one_line(header.why), header.kind == "broken"), size
