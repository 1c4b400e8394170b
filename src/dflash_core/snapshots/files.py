"""Snapshots on disk: one file per conversation, written under a temporary name and then renamed.

A file has a magic, a byte-order mark, the header's length, the header (JSON), the tensors, and a digest of everything.
It is read only if it has the same version, pair and byte order.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt

from dflash_core.damaged import DAMAGED
from dflash_core.files import open_input, writing
from dflash_core.snapshots.base import Rows, Snapshot, SnapshotError, State, Tokens

if TYPE_CHECKING:
    from torch import Tensor

MAGIC, VERSION = b"DFLASHST", 1
ORDER = np.uint32(0x01020304)
SUFFIX = ".state"
MOST_HEADER = 64 << 20
DIGEST = 16
TYPES = ("float32", "float16", "bfloat16", "float64", "uint8", "int8", "int32", "int64")


class Shape(msgspec.Struct, frozen=True):
    """A tensor: its type, by torch's name, and its sizes."""

    kind: str
    sizes: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        sizes = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "uint8": 1, "int8": 1}
        count = sizes.get(self.kind, 2)
        for size in self.sizes:
            count *= max(size, 0)
        return count


class Header(msgspec.Struct, frozen=True):
    """What a file holds. `pages`: begin, end and tensors of each."""

    version: int
    space: str
    tokens: list[int]
    pages: list[tuple[int, int, list[Shape]]]
    state: list[Shape]

    def shapes(self) -> Iterator[Shape]:
        for _, _, shapes in self.pages:
            yield from shapes
        yield from self.state


@dataclass(frozen=True, slots=True)
class Stored:
    """A file, as described by its header."""

    path: Path
    header: Header
    tokens: Tokens
    begin: int  # of the tensors


@dataclass(frozen=True, slots=True)
class Held:
    """Implements `base.State` with the tensors that were read, not yet checked by a session."""

    length: int
    tensors: tuple[Tensor, ...]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)


def write(folder: Path, space: str, snapshot: Snapshot) -> Path:
    """Write a snapshot. Raises OSError; then no partial file is left."""
    state = snapshot.state.tensors
    header = Header(
        VERSION, space, snapshot.tokens.tolist(),
        [(page.begin, page.end, [_shape(tensor) for tensor in page.tensors]) for page in snapshot.pages],
        [_shape(tensor) for tensor in state],
    )  # fmt: skip
    encoded = msgspec.json.encode(header)
    path = folder / (hashlib.blake2b(space.encode() + snapshot.tokens.tobytes(), digest_size=12).hexdigest() + SUFFIX)
    with writing(path, mode=0o600) as file:
        digest = hashlib.blake2b(digest_size=DIGEST)
        tensors = [tensor for page in snapshot.pages for tensor in page.tensors] + list(state)
        start = MAGIC + ORDER.tobytes() + len(encoded).to_bytes(4, "little") + encoded
        for piece in itertools.chain([np.frombuffer(start, np.uint8)], map(_bytes, tensors)):
            digest.update(piece.data)
            file.write(piece.data)
        file.write(digest.digest())
    return path


def look(path: Path, space: str) -> Stored:
    """A file's header. Raises SnapshotError for one that is damaged, or was not written for `space`; InputError,
    OSError."""
    with _named(path), open_input(path) as raw:
        start = _exactly(raw, len(MAGIC) + 8)
        if not start.startswith(MAGIC):
            raise SnapshotError("is no state of a conversation")
        if start[len(MAGIC) : -4] != ORDER.tobytes():
            raise SnapshotError("was written on a machine of another byte order, or is damaged")
        length = int.from_bytes(start[-4:], "little")
        if length > MOST_HEADER:
            raise SnapshotError(f"is damaged: a header of {length:,} bytes")
        try:
            header = msgspec.json.decode(_exactly(raw, length), type=Header)
            tokens = np.asarray(header.tokens, np.int32)
        except (*DAMAGED, OverflowError):
            raise SnapshotError("is damaged: its header cannot be read") from None
    if header.version != VERSION:
        raise SnapshotError(f"{path.name} is of version {header.version}, expected {VERSION}")
    if header.space != space:
        raise SnapshotError(f"{path.name} is of another pair of models")
    if any(one.kind not in TYPES or any(size < 0 for size in one.sizes) for one in header.shapes()):
        raise SnapshotError(f"{path.name} is damaged: tensors of no type or size")
    begin = len(start) + length
    expected, found = begin + sum(one.nbytes for one in header.shapes()) + DIGEST, path.stat().st_size
    if found != expected:
        raise SnapshotError(f"{path.name} has {found:,} bytes, expected {expected:,}: it was cut short")
    return Stored(path, header, tokens, begin)


def read(stored: Stored) -> Snapshot:
    """Read it completely. Raises SnapshotError where the digest is wrong; InputError, OSError."""
    digest = hashlib.blake2b(digest_size=DIGEST)
    with _named(stored.path), open_input(stored.path) as raw:
        digest.update(_exactly(raw, stored.begin))
        pages = tuple(
            Rows(begin, end, tuple(_tensor(raw, shape, digest) for shape in shapes))
            for begin, end, shapes in stored.header.pages
        )
        tensors = tuple(_tensor(raw, shape, digest) for shape in stored.header.state)
        if _exactly(raw, DIGEST) != digest.digest():
            raise SnapshotError("is damaged: its sum is another")
    state: State = Held(len(stored.tokens), tensors)
    return Snapshot(stored.tokens, pages, state)


def files(folder: Path) -> list[Path]:
    """Every file of a state, the newest first."""
    found = []
    for path in folder.glob(f"*{SUFFIX}"):
        with contextlib.suppress(OSError):
            status = path.stat()
            if stat.S_ISREG(status.st_mode):
                found.append((status.st_mtime, path))
    return [path for _, path in sorted(found, reverse=True)]


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Adds this file's name to errors inside the block."""
    try:
        yield
    except SnapshotError as error:
        raise SnapshotError(f"{path.name} {error}") from None


def _exactly(raw: BinaryIO, count: int) -> bytes:
    parts, left = list[bytes](), count
    while left and (part := raw.read(left)):
        parts.append(part)
        left -= len(part)
    if left:
        raise SnapshotError("was cut short")
    return b"".join(parts)


def _shape(tensor: Tensor) -> Shape:
    return Shape(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))


def _bytes(tensor: Tensor) -> npt.NDArray[np.uint8]:
    import torch

    return tensor.contiguous().view(-1).view(torch.uint8).numpy()


def _tensor(raw: BinaryIO, shape: Shape, digest: hashlib.blake2b) -> Tensor:
    import torch

    held = bytearray(shape.nbytes)
    view, at = memoryview(held), 0
    while at < len(view):
        count = raw.readinto(view[at:])  # type: ignore[attr-defined]
        if not count:
            raise SnapshotError("was cut short")
        at += count
    digest.update(held)
    if not held:
        return torch.empty(shape.sizes, dtype=getattr(torch, shape.kind))
    return torch.frombuffer(held, dtype=getattr(torch, shape.kind)).view(shape.sizes)


def same_conversation(a: Tokens, b: Tokens) -> bool:
    """Whether one of two states is a continuation of the other."""
    count = min(len(a), len(b))
    return bool(np.array_equal(a[:count], b[:count]))
