"""Models on this machine, as they are found: first the kind of each file, then the drafters that match it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from dflash_core.clean import one_line
from dflash_tui.application.hub.found import Found, PassedOver
from dflash_tui.application.hub.header import HeaderCache, key_and_size, read_header
from dflash_tui.application.hub.pairing import drafters_of
from dflash_tui.application.hub.places import Place
from dflash_tui.application.hub.walk import Candidate, walk


def look(
    where: Sequence[Place], cache: HeaderCache, stopping: Callable[[], bool] = lambda: False
) -> Iterator[Found | PassedOver]:
    """Every file once, under the first place that contains it; then each model again with its drafters."""
    seen, targets, drafts = set[Path](), list[Found](), list[Found]()
    for place in where:
        for one in walk(place, stopping):
            if one is None:
                yield PassedOver(place.folder, f"{place.folder}: too many files; not all were checked", broken=True)
                continue
            real = one.path.resolve()
            if real in seen:
                continue
            seen.add(real)
            read = _read(one, cache)
            if stopping():
                return
            if isinstance(read, PassedOver):
                yield read
            elif read is not None and read.header.kind == "draft":
                drafts.append(read)
            elif read is not None:
                targets.append(read)
                yield read
    for found in targets:
        if stopping():
            return
        yield replace(found, drafters=drafters_of(found, drafts, cache))
    cache.save()


def _read(one: Candidate, cache: HeaderCache) -> Found | PassedOver | None:
    """What a file or folder is, from the cache if it has not changed; None for a folder of something else."""
    try:
        key, size = key_and_size(one.path, folder=one.folder)
    except OSError as error:  # a broken link, or deleted since
        return PassedOver(one.path, one_line(f"{one.path} cannot be read: {error.strerror}"), broken=True)
    header = cache.headers.get(key) or read_header(one.path, folder=one.folder)
    if header is None:
        return None
    cache.headers[key] = header
    if header.kind in ("target", "draft"):
        return Found(one.path, one_line(one.name), one.place.name, header, size, key=key)
    return PassedOver(one.path, one_line(header.why), header.kind == "broken")
