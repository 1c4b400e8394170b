"""Models on this machine, as they are found: first the kind of each file, then the drafters that match it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from dflash_core.clean import one_line
from dflash_tui.application.hub.found import Found, PassedOver
from dflash_tui.application.hub.header import HeaderCache, key_of, read_header, size_of
from dflash_tui.application.hub.pairing import ReadHeader, drafters_of
from dflash_tui.application.hub.places import Place
from dflash_tui.application.hub.walk import Candidate, TooMany, walk


def look(
    where: Sequence[Place], cache: HeaderCache, stopping: Callable[[], bool] = lambda: False
) -> Iterator[Found | PassedOver]:
    """Every file once, under the first place that contains it; then each model again with its drafters."""
    seen, targets, drafts = set[Path](), list[tuple[Found, ReadHeader]](), list[ReadHeader]()
    for place in where:
        for one in walk(place, stopping):
            if isinstance(one, TooMany):
                yield PassedOver(place.folder, f"{place.folder}: too many files; not all were checked", broken=True)
                continue
            real = one.path.resolve()
            if real in seen:
                continue
            seen.add(real)
            read, size = _read(one, cache)
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
        yield replace(found, drafters=drafters_of(read, drafts, cache))
    cache.save()


def _read(one: Candidate, cache: HeaderCache) -> tuple[ReadHeader | PassedOver | None, int]:
    """The header, from the cache if the file has not changed, and its size in bytes."""
    try:
        key, size = key_of(one.path, folder=one.folder), size_of(one.path, folder=one.folder)
    except OSError as error:  # a broken link, or deleted since
        return PassedOver(one.path, one_line(f"{one.path} cannot be read: {error.strerror}"), broken=True), 0
    header = cache.headers.get(key)
    if header is None:
        header = read_header(one.path, folder=one.folder)
        if header is None:
            return None, 0
        cache.headers[key] = header
    if header.kind in ("target", "draft"):
        return ReadHeader(one.path, one.name, header, key), size
    return PassedOver(one.path, one_line(header.why), header.kind == "broken"), size
