"""Reads input files, and writes files atomically. Input must be a regular file, and a limit bounds what is read: a
FIFO, a device or a socket would block forever or never end."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from dflash_core.errors import DFlashError, InputError

_KINDS = (
    (stat.S_ISDIR, "a folder, expected a file; name a file inside it"),
    (stat.S_ISFIFO, "a FIFO, expected a regular file; write its output to a file first"),
    (stat.S_ISSOCK, "a socket, expected a regular file; name another"),
    (stat.S_ISCHR, "a device, expected a regular file; name another"),
    (stat.S_ISBLK, "a device, expected a regular file; name another"),
)


def open_input(path: Path) -> BinaryIO:
    """A regular file, open for reading, unbuffered. Raises InputError for anything else; OSError as `open` does."""
    check_regular(path)
    # It may have become a FIFO since the check, and opening one waits for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        _check_mode(path, os.fstat(descriptor).st_mode)
    except InputError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb", buffering=0)


def open_output(path: Path) -> BinaryIO:
    """A new or emptied regular file, open for writing, unbuffered. Raises as `open_input`."""
    check_regular(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK, 0o666)
    return os.fdopen(descriptor, "wb", buffering=0)


@contextlib.contextmanager
def writing(path: Path, *, mode: int = 0o666, sync: bool = False) -> Iterator[BinaryIO]:
    """A file that replaces `path` when the block ends. If the block or the disk fails, `path` is unchanged. `mode`: of
    a new file. `sync`: survive a loss of power too; for data that cannot be made again. Raises OSError."""
    path = Path(os.path.realpath(path))  # a symbolic link to a settings file stays a link
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name[:40]}-{secrets.token_hex(8)}.part")
    before = None
    with contextlib.suppress(FileNotFoundError):
        before = mode = stat.S_IMODE(path.stat().st_mode)
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            yield file
            if before is not None:
                part.chmod(before)  # the umask is for new files
            if sync:
                file.flush()
                os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_whole(path: Path, data: bytes, *, sync: bool = False) -> None:
    """Write a file completely, or leave it unchanged. Raises OSError."""
    with writing(path, sync=sync) as file:
        file.write(data)


def read_input(path: Path, most: int) -> bytes:
    """A regular file of at most `most` bytes. Raises InputError for any other; OSError as `open` does."""
    with open_input(path) as file:
        return read_limited(file, most, str(path))


def read_limited(file: BinaryIO, most: int, name: str) -> bytes:
    """The content of a stream of at most `most` bytes. Raises InputError if it is longer."""
    parts: list[bytes] = []
    left = most + 1
    while left and (part := file.read(min(left, 1 << 20))):
        parts.append(part)
        left -= len(part)
    if not left:
        raise InputError(name, f"holds more than {most:,} bytes, the limit; give a smaller one")
    return b"".join(parts)


def folder_name(folder: Path) -> str:
    """The display name of a model folder: in a hub's cache the repository's name, because the folder is a checksum."""
    repository = folder.parent.parent.name
    if folder.parent.name == "snapshots" and repository.startswith("models--"):
        return repository.rpartition("--")[2]
    return folder.name


def check_regular(path: Path) -> None:
    """Refuse a path that exists and is not a regular file. Raises InputError; OSError except for a missing file."""
    with contextlib.suppress(FileNotFoundError):
        _check_mode(path, path.stat().st_mode)


def check_folder(path: Path) -> None:
    """Refuse a file to write whose folder does not exist. Raises DFlashError."""
    if not path.parent.is_dir():
        raise DFlashError(f"{path}: there is no folder {path.parent}; make it first, or name another")


def _check_mode(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        what = next((what for is_kind, what in _KINDS if is_kind(mode)), "no regular file")
        raise InputError(str(path), f"is {what}")
