"""States of the last conversations on disk: one safetensors file each, written under a temporary name and then renamed.

A tensor of a page is called BEGIN.END.INDEX by its positions, one of the state "state.INDEX". The metadata names the
version and the pair, and has the tokens and a digest of everything: a file is read only if each agrees.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from dflash_core.errors import InputError
from dflash_core.files import open_input, writing
from dflash_core.snapshots.base import Rows, SavedState, Snapshot, SnapshotError, Tokens, common

if TYPE_CHECKING:
    from torch import Tensor

LOG = logging.getLogger(__name__)
VERSION = "2"
SUFFIX = ".safetensors"
# safetensors' names of the types that states have, by torch's.
TYPES = {
    "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64",
    "uint8": "U8", "int8": "I8", "int32": "I32", "int64": "I64",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stored:
    """A file, as described by its metadata. `names`: of its tensors."""

    path: Path
    space: str
    tokens: Tokens
    digest: str
    names: tuple[str, ...]


def write(folder: Path, space: str, snapshot: Snapshot) -> Path:
    """Write a snapshot. Raises OSError; then no partial file is left.

    The library's own writer would first copy every tensor, and a snapshot may take gigabytes.
    """
    named = list(_named(snapshot.pages, snapshot.state.tensors))
    digest = _digest(space, snapshot.tokens, named)
    metadata = {"version": VERSION, "space": space, "tokens": _listed(snapshot.tokens), "digest": digest}
    header: dict[str, object] = {"__metadata__": metadata}
    at = 0
    for name, tensor in named:
        kind = TYPES[_kind(tensor)]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    path = folder / (hashlib.blake2b(space.encode() + snapshot.tokens.tobytes(), digest_size=12).hexdigest() + SUFFIX)
    with writing(path, mode=0o600) as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for _, tensor in named:
            file.write(_bytes(tensor).data)
    return path


def look(path: Path, space: str) -> Stored:
    """A file's metadata. Raises SnapshotError for one that is damaged, or was not written for `space`; InputError,
    OSError."""
    with _opened(path) as file:
        found, names = file.metadata() or {}, tuple(file.keys())
    if (version := found.get("version")) != VERSION:
        raise SnapshotError(f"{path.name} is of version {version}, expected {VERSION}")
    if found.get("space") != space:
        raise SnapshotError(f"{path.name} is of another pair of models")
    try:
        tokens = np.array([int(token) for token in found["tokens"].split(",")], np.int32)
        return Stored(path, space, tokens, found["digest"], names)
    except (ValueError, KeyError, OverflowError):
        raise SnapshotError(f"{path.name} is damaged: its tokens cannot be read") from None


def read(stored: Stored) -> Snapshot:
    """Read it completely. Raises SnapshotError where the digest is wrong; InputError, OSError."""
    spans: dict[tuple[int, int], list[Tensor]] = {}
    state: list[Tensor] = []
    named: list[tuple[str, Tensor]] = []
    with _opened(stored.path) as file:
        try:
            for name, begin, end in _places(stored.names):
                tensor = file.get_tensor(name)
                named.append((name, tensor))
                (state if begin < 0 else spans.setdefault((begin, end), [])).append(tensor)
        except (ValueError, KeyError, SafetensorError):
            raise SnapshotError(f"{stored.path.name} is damaged: its tensors cannot be read") from None
    if _digest(stored.space, stored.tokens, named) != stored.digest:
        raise SnapshotError(f"{stored.path.name} is damaged: its sum is another")
    pages = tuple(Rows(begin, end, tuple(tensors)) for (begin, end), tensors in spans.items())
    return Snapshot(stored.tokens, pages, SavedState(len(stored.tokens), tuple(state)))


def files(folder: Path) -> list[Path]:
    """Every file of a state, the newest first."""
    found = []
    for path in folder.glob(f"*{SUFFIX}"):
        with contextlib.suppress(OSError):
            status = path.stat()
            if stat.S_ISREG(status.st_mode):
                found.append((status.st_mtime, path))
    return [path for _, path in sorted(found, reverse=True)]


def same_conversation(a: Tokens, b: Tokens) -> bool:
    """Whether one of two states is a continuation of the other."""
    return common(a, b) == min(len(a), len(b))


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    open_input(path).close()  # refuses what is no regular file
    try:
        file = safe_open(path, "pt")
    except SafetensorError as error:
        raise SnapshotError(f"{path.name} is damaged: {error}") from None
    with file:
        yield file


def _named(pages: Iterable[Rows], state: Iterable[Tensor]) -> Iterator[tuple[str, Tensor]]:
    for page in pages:
        yield from ((f"{page.begin}.{page.end}.{index}", tensor) for index, tensor in enumerate(page.tensors))
    yield from ((f"state.{index}", tensor) for index, tensor in enumerate(state))


def _places(names: Iterable[str]) -> list[tuple[str, int, int]]:
    """Names of tensors in the order in which they were written, each with its positions; -1 for the state."""

    def key(name: str) -> tuple[float, int, int]:
        *span, index = name.split(".")
        return (math.inf, -1, int(index)) if span == ["state"] else (int(span[0]), int(span[1]), int(index))

    placed = [(key(name), name) for name in names]
    return [(name, -1 if begin == math.inf else int(begin), end) for (begin, end, _), name in sorted(placed)]


def _listed(tokens: Tokens) -> str:
    return ",".join(map(str, tokens.tolist()))


def _digest(space: str, tokens: Tokens, named: Iterable[tuple[str, Tensor]]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"{VERSION}\n{space}\n{_listed(tokens)}\n".encode())
    for name, tensor in named:
        digest.update(f"{name} {_kind(tensor)} {tuple(tensor.shape)}\n".encode())
        digest.update(_bytes(tensor).data)
    return digest.hexdigest()


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _bytes(tensor: Tensor) -> npt.NDArray[np.uint8]:
    import torch

    return tensor.contiguous().view(-1).view(torch.uint8).numpy()


class StateFolder:
    """Stores the newest `count` conversations; with 0 nothing is written, but existing files are still read."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder, count
        self._stored: dict[str, list[Stored]] = {}

    def find(self, space: str, ids: Tokens, beyond: int, *, cut: bool) -> Snapshot | None:
        """The state with the longest common prefix with `ids`, if longer than `beyond` tokens. Unreadable files are
        dropped and logged."""
        best: tuple[int, Stored] | None = None
        for one in self._index(space):
            shared = common(one.tokens, ids)
            if (cut or shared == len(one.tokens)) and shared > max(beyond, best[0] if best else 0):
                best = shared, one
        if best is None:
            return None
        try:
            return read(best[1])
        except (SnapshotError, InputError, OSError) as error:
            self._drop(space, best[1], str(error))
            return None

    def save(self, space: str, snapshots: Iterable[Snapshot]) -> None:
        """Write the newest states of the last conversations; `snapshots` come the newest first. Never raises."""
        if not self.count:
            return
        newest = list[Snapshot]()
        for snapshot in snapshots:
            if not any(same_conversation(snapshot.tokens, one.tokens) for one in newest):
                newest.append(snapshot)
            if len(newest) == self.count:
                break
        there = {one.tokens.tobytes() for one in self._index(space)}
        try:
            for snapshot in reversed(newest):  # files are ordered by their age
                if snapshot.tokens.tobytes() not in there:
                    write(self.folder, space, snapshot)
        except OSError as error:
            LOG.warning("the state of a conversation is not stored: %s: %s", self.folder, error.strerror or error)
            return
        finally:
            self._stored.pop(space, None)  # some may have been written
        stored = [snapshot.tokens for snapshot in newest]
        older = [one for one in self._index(space) if not any(np.array_equal(one.tokens, new) for new in stored)]
        gone = [one.path for one in older if any(same_conversation(one.tokens, new) for new in stored)]
        gone += [path for path in files(self.folder) if path not in gone][self.count :]
        for path in gone:
            with contextlib.suppress(OSError):
                path.unlink()
        self._stored.pop(space, None)

    def size(self) -> tuple[int, int]:
        """The number of files, and their bytes."""
        sizes = [path.stat().st_size for path in files(self.folder)]
        return len(sizes), sum(sizes)

    def clear(self) -> tuple[int, int]:
        """Delete them all, partial files of an interrupted write, and those of earlier versions.
        Returns what there was. Raises OSError."""
        found = self.size()
        for path in (*files(self.folder), *self.folder.glob("*.part"), *self.folder.glob("*.state")):
            path.unlink(missing_ok=True)
        self._stored.clear()
        return found

    def _index(self, space: str) -> list[Stored]:
        if space not in self._stored:
            found = []
            for path in files(self.folder):
                try:
                    found.append(look(path, space))
                except (SnapshotError, InputError) as error:
                    LOG.info("a stored state is left as it is: %s", error)
                except OSError as error:
                    LOG.info("a stored state cannot be read: %s: %s", path, error.strerror)
            self._stored[space] = found
        return self._stored[space]

    def _drop(self, space: str, stored: Stored, why: str) -> None:
        LOG.warning("a stored state is dropped, its conversation is read again: %s", why)
        self._stored[space].remove(stored)
        with contextlib.suppress(OSError):
            stored.path.unlink()
