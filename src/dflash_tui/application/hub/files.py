"""Files of pairs on the disk: those that are complete, parts of those that are not yet, and the space for the rest."""

from __future__ import annotations

import fcntl
import glob
import re
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dflash_core.errors import DFlashError
from dflash_core.memory import gib
from dflash_tui.application.hub.catalogue import Pair, Source

SPARE = 1 << 28  # bytes of the disk to leave free


class HubError(DFlashError):
    """A file could not be fetched; the received part stays on the disk and is resumed."""


@dataclass(frozen=True, slots=True)
class FileRequest:
    """A file to fetch: its size in bytes, its commit and its checksum, according to the hub."""

    source: Source
    file: str
    size: int
    commit: str = ""
    sum: str = ""

    @property
    def where(self) -> str:
        return f"{self.source.repo}/{self.file}"


def place(source: Source, folder: Path) -> Path:
    return folder / source.repo.replace("/", "--")


def fetched(pair: Pair, folder: Path) -> tuple[Path, Path | None]:
    """The paths of the target and the drafter of a fetched pair, to open them."""
    target = place(pair.target, folder) / pair.target.opened
    return target, None if pair.draft is None else place(pair.draft, folder) / pair.draft.opened


def check_disk(files: Sequence[FileRequest], folder: Path, others: Iterable[FileRequest] = ()) -> None:
    """Raise HubError if the disk has no space for the missing bytes of `files` and of `others`, which
    are being fetched into the same folder. What older versions of `files` have left there is deleted first."""
    for one in files:
        delete_older(one, folder)
    needed = _missing(files, folder)
    more = _missing({*others}.difference(files), folder)
    there = next((one for one in (folder, *folder.parents) if one.exists()), Path("/"))
    free = shutil.disk_usage(there).free
    if needed and needed + more + SPARE > free:
        beside = f", {gib(more)} of other downloads" if more else ""
        raise HubError(
            f"{folder}: {gib(needed)} to fetch{beside}, {gib(free)} free; free some space,"
            " or name another folder with --to"
        )


def _missing(files: Iterable[FileRequest], folder: Path) -> int:
    return sum(one.size - here(one, folder) for one in files)


def here(one: FileRequest, folder: Path) -> int:
    """Bytes of a file that are already on the disk, complete or partial."""
    for path in (place(one.source, folder) / one.file, part_of(one, folder)):
        with suppress(OSError):
            return min(path.stat().st_size, one.size)
    return 0


def _parts(path: Path) -> list[Path]:
    """The partial files of a file, of whatever version."""
    return [*path.parent.glob(f"{glob.escape(path.name)}.*.part")]


def delete_older(one: FileRequest, folder: Path) -> None:
    """Delete parts of other versions of a file, which nothing would complete, unless one is being fetched."""
    for part in _parts(place(one.source, folder) / one.file):
        if part == part_of(one, folder):
            continue
        with suppress(OSError), part.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            part.unlink()


def begun(pair: Pair, folder: Path) -> tuple[int, bool]:
    """Bytes of a pair on the disk, in complete or partial files, and whether it is complete; without the hub."""
    size, whole = 0, True
    for source in filter(None, (pair.target, pair.draft)):
        for file in source.files:
            path, parts = place(source, folder) / file, list[Path]()
            with suppress(OSError):  # a folder without read permission
                parts = [path] if path.is_file() else _parts(path)
                size += sum(part.stat().st_size for part in parts)
            whole = whole and parts == [path]
    return size, whole


def begun_words(pair: Pair, folder: Path) -> str:
    """How much of a pair is on the disk; "" if nothing."""
    size, whole = begun(pair, folder)
    return "on this machine" if whole else f"{gib(size)} of it is on this machine" if size else ""


def received(files: Iterable[FileRequest], folder: Path) -> str:
    """The message when a download ends early."""
    found = sum(here(one, folder) for one in files)
    return f"{gib(found)} saved in {folder}; the next try continues there" if found else "nothing was received"


def part_of(one: FileRequest, folder: Path) -> Path:
    """The part file's name contains the checksum: a partial file is not resumed when the hub has a new version."""
    path = place(one.source, folder) / one.file
    return path.with_name(f"{path.name}.{re.sub('[^0-9A-Za-z]', '', one.sum)[:12] or 'new'}.part")
