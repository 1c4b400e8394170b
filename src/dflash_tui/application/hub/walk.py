"""Files and folders of a place that may contain a model or a drafter. No header is read here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dflash_core.files import folder_name
from dflash_core.formats.splits import SPLIT_NAME
from dflash_tui.application.hub.ollama import stored
from dflash_tui.application.hub.places import Place, places

MAX_ENTRIES = 20_000  # entries that are checked in one place
NOT_OF_MODELS = ("datasets--", "spaces--")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A GGUF file (the first one of a split model) or a folder with a drafter. `name`: its usual name."""

    path: Path
    name: str
    place: Place
    folder: bool = False


@dataclass(frozen=True, slots=True)
class TooMany:
    """A place with more entries than the limit."""

    place: Place


def walk(place: Place, stopping: Callable[[], bool] = lambda: False) -> Iterator[Candidate | TooMany]:
    """Possible models and drafters, the nearest first. Unreadable folders are skipped."""
    if place.keeps == "ollama":
        yield from (Candidate(path, name, place) for name, path in stored(place.folder))
        return
    if place.keeps == "itself":
        yield Candidate(place.folder, place.folder.name, place)
        return
    count, waiting, seen = 0, [(place.folder, 0)], set[tuple[int, int]]()
    while waiting and not stopping():
        here, depth = waiting.pop(0)
        try:
            about = here.stat()
            with os.scandir(here) as listed:
                entries = sorted(listed, key=lambda one: one.name)
        except OSError:
            continue
        if (about.st_dev, about.st_ino) in seen:  # circular links
            continue
        seen.add((about.st_dev, about.st_ino))
        names = {entry.name for entry in entries}
        if "config.json" in names and any(name.endswith(".safetensors") for name in names):
            yield Candidate(here, folder_name(here), place, folder=True)
        for entry in entries:
            count += 1
            if count > MAX_ENTRIES:
                yield TooMany(place)
                return
            try:
                inside = entry.is_dir()
            except OSError:
                continue
            if inside and depth < place.deep and _enters(place, entry.name, depth):
                waiting.append((Path(entry.path), depth + 1))
            elif not inside and entry.name.lower().endswith(".gguf") and not _is_later_part(entry.name, names):
                yield Candidate(Path(entry.path), entry.name, place)


def of_name(name: str, where: Iterable[Place]) -> Path | None:
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


def find_name(name: str, folders: Iterable[Path]) -> Path | None:
    """As `of_name`, in all places where models are, and in the user's own folders."""
    return of_name(name, places(folders))


def _enters(place: Place, name: str, depth: int) -> bool:
    if place.keeps == "hub" and ((depth == 1 and name in ("blobs", "refs")) or name.startswith(NOT_OF_MODELS)):
        return False
    return not name.startswith(".")


def _is_later_part(name: str, beside: set[str]) -> bool:
    """Whether a file is a later part of a split model whose first part, or an earlier part, is listed."""
    match = SPLIT_NAME.fullmatch(name)
    if match is None or int(match[2]) <= 1:
        return False
    return any(f"{match[1]}-{part:05d}-of-{match[3]}.gguf" in beside for part in range(1, min(int(match[2]), 1000)))
