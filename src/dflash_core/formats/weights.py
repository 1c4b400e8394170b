"""Weight files of every format: named tensors in shards, read from the file as float32."""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from dflash_core.errors import FormatError, UnsupportedError
from dflash_core.files import open_input
from dflash_core.formats.quants import LIST_TYPES, Bytes, Float32, to_float32, to_int64

Rows = TypeVar("Rows", Bytes, Float32)
PART_BYTES = 1 << 20  # stored bytes that become floats at a time


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor's place in the file and its type. `shape` is in torch order (rows first), the reverse of ggml's ne.

    `factors`: what its values are multiplied by, one number or one per entry of the first dimension; none for 1.

    interleaved: rows of a head, where the file stores them as 0, d/2, 1, d/2 + 1, ... and they are read as 0, 1, ...;
    0 where the file has them in order.
    """

    name: str
    shape: tuple[int, ...]
    type: str
    n_bytes: int
    n_elements: int
    shard: int
    offset: int
    factors: tuple[float, ...] = ()
    interleaved: int = 0


class Shard:
    """An open weight file, read on demand.

    Not a memory map: if a mapped file is truncated, or its disk fails, reading it ends the process with SIGBUS.
    """

    def __init__(self, path: Path) -> None:
        """Raises FormatError if it is not a regular file, is empty, or cannot be opened."""
        self.name = str(path)
        try:
            self._file = open_input(path)
            self.size = os.fstat(self._file.fileno()).st_size
        except FileNotFoundError:
            raise FormatError(f"{path} does not exist; check the path") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise FormatError(f"{path} cannot be read: {reason}") from None
        weakref.finalize(self, self._file.close)
        if not self.size:
            raise FormatError(f"{path} is empty (0 bytes); download or copy it again")

    def __len__(self) -> int:
        return self.size

    def read(self, offset: int, count: int, out: Bytes | None = None) -> Bytes:
        """(count,) bytes from `offset` on, in a new array or in `out`. Raises FormatError if the file no longer has
        them."""
        into = np.empty(count, np.uint8) if out is None else out.reshape(-1)
        done = 0
        try:
            while done < count:  # one call reads 2 GiB at most
                read = os.preadv(self._file.fileno(), [into.data[done:]], offset + done)
                if not read:
                    raise FormatError(
                        f"{self.name} has become shorter while it was in use: {count - done:,} bytes at offset"
                        f" {offset + done:,} are gone; copy or download it again, then load it again"
                    )
                done += read
        except OSError as error:
            raise FormatError(f"{self.name} cannot be read any more: {error.strerror}; check its disk") from None
        return into


@dataclass(frozen=True, slots=True, eq=False)
class WeightFile:
    """The tensors of open files by names, which need not be those in the files. They were checked against their shard's
    size when the file was opened.

    Every reading raises FormatError where the file has become shorter since.
    """

    path: Path
    tensors: Mapping[str, TensorInfo]
    shards: tuple[Shard, ...]

    def damaged(self, name: str, found: str, expected: str) -> FormatError:
        """The refusal of a tensor."""
        return FormatError(f"{self.path}: {shown(name)} {found}, expected {expected}; download it again")

    def unread(self, name: str, found: str, expected: str, use: str = "another file of the model") -> UnsupportedError:
        """The refusal of a tensor in a form that is not read."""
        return UnsupportedError(f"{self.path}: {shown(name)} {found}, expected {expected}; use {use}")

    def raw(self, name: str, rows: slice | None = None, out: Bytes | None = None) -> Bytes:
        """The stored bytes, (rows, bytes per row), of all rows or some: a row is the last dimension.

        Read into `out`, contiguous and of that shape, where there is one, else into a new array.
        """
        info = self.tensors[name]
        count = info.n_elements // info.shape[-1]
        return self._rows(info, count, rows, out)

    def float32(self, name: str, rows: slice | None = None) -> Float32:
        """A new float32 array in torch order; with `rows`, only that part of the first dimension is read."""
        info = self.tensors[name]
        if info.type in LIST_TYPES:
            raise FormatError(f"tensor {shown(name)} is a list of {info.type}, expected weights; convert it again")
        if len(info.shape) == 1:  # its blocks are of the one dimension there is
            values = to_float32(self.raw(name), info.type).reshape(info.shape)
            values = in_halves(values, info.interleaved)
            return values if rows is None else values[rows]
        begin, end, _ = span = (rows or slice(None)).indices(info.shape[0])
        count = len(range(*span))
        values = np.empty((count, info.n_elements // info.shape[0]), np.float32)
        # In parts: apart from the floats, memory has at most one part in its stored form.
        step = max(1, PART_BYTES // (info.n_bytes // info.shape[0]))
        for at in range(0, count, step):
            part = slice(begin + at, min(begin + at + step, end))
            values[at : at + step] = to_float32(self._rows(info, info.shape[0], part), info.type)
        if info.factors:
            of_rows = np.broadcast_to(np.array(info.factors, np.float32), info.shape[0])
            values *= of_rows[begin:end, None]
        return values.reshape(count, *info.shape[1:])

    def int64(self, name: str) -> npt.NDArray[np.int64]:
        """A list of numbers, (count,). Raises FormatError where the tensor is none."""
        info = self.tensors[name]
        if info.type not in LIST_TYPES:
            raise FormatError(
                f"{self.shards[info.shard].name}: tensor {shown(name)} is stored as {info.type}, expected a list of "
                "I32 or I64; convert the file again"
            )
        return to_int64(self.raw(name), info.type)

    def _rows(self, info: TensorInfo, count: int, rows: slice | None, out: Bytes | None = None) -> Bytes:
        """Consecutive rows, where the tensor is seen as `count` of them."""
        width = info.n_bytes // count
        begin, end, step = (rows or slice(None)).indices(count)
        if step != 1:
            raise ValueError(f"rows {rows} of a stored tensor, expected consecutive ones")
        found = max(end - begin, 0)
        if not info.interleaved or count == 1:
            return self._stored(info, width, begin, found, out)
        # Whole heads are read, since their rows change places.
        head = info.interleaved
        first, last = begin // head * head, -(-end // head) * head
        stored = self._stored(info, width, first, max(last - first, 0))
        return given(in_halves(stored, head)[begin - first : begin - first + found], out)

    def _stored(self, info: TensorInfo, width: int, first: int, count: int, out: Bytes | None = None) -> Bytes:
        """Rows of `width` bytes, as the file has them."""
        shard = self.shards[info.shard]
        return shard.read(info.offset + first * width, count * width, out).reshape(count, width)


def given(data: Bytes, out: Bytes | None) -> Bytes:
    """`data`, copied into `out` where there is one."""
    if out is None:
        return data
    out.reshape(data.shape)[:] = data
    return out


def in_halves(rows: Rows, head: int) -> Rows:
    """Rows (n, ...) of heads of `head` rows: from the order of pairs (2i, 2i + 1) to that of halves (i, i + head/2)."""
    if not head:
        return rows
    pairs = rows.reshape(-1, head // 2, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def in_parts(info: TensorInfo, parts: Mapping[str, int]) -> dict[str, TensorInfo]:
    """A tensor's rows as separate tensors: `parts` has their names and numbers of rows.

    Blocks of a quantised type do not cross rows, so each part equals a tensor stored separately.
    """
    found, row = {}, 0
    for name, rows in parts.items():
        size, numbers = info.n_bytes // info.shape[0], info.n_elements // info.shape[0]
        offset = info.offset + row * size
        shape = (rows, *info.shape[1:])
        found[name] = replace(
            info, name=name, shape=shape, n_bytes=rows * size, n_elements=rows * numbers, offset=offset
        )
        row += rows
    return found


def check_apart(source: str, tensors: Iterable[TensorInfo]) -> None:
    """Refuse a file in which two tensors share bytes: no program writes one, so an offset is damaged or forged."""
    for first, second in itertools.pairwise(sorted(tensors, key=lambda info: info.offset)):
        shared = first.offset + first.n_bytes - second.offset
        if shared > 0:
            raise FormatError(
                f"{source}: tensors {shown(first.name)} and {shown(second.name)} share {shared:,} bytes at offset"
                f" {second.offset:,}, expected each to have its own; the file is damaged, download it again"
            )


def check_tensors(
    source: str, tensors: Mapping[str, TensorInfo], expected: Mapping[str, tuple[int, ...]], ignored: Iterable[str] = ()
) -> None:
    """Refuse a file whose tensors are not exactly `expected`, apart from `ignored` names.

    Ignoring an unknown tensor could change the model's output, so it is refused as well.
    """
    missing = [name for name in expected if name not in tensors]
    if missing:
        raise FormatError(
            f"{source}: {len(missing)} of {len(expected)} tensors are missing: {listed(missing)};"
            " the file is incomplete or made for another program"
        )
    for name, shape in expected.items():
        if tensors[name].shape != shape:
            raise FormatError(
                f"{source}: tensor {name} has shape {list(tensors[name].shape)}, expected {list(shape)} from the"
                " file's own settings; convert the model again"
            )
    unknown = sorted(set(tensors).difference(expected, ignored))
    if unknown:
        raise UnsupportedError(
            f"{source}: {len(unknown)} tensors have no meaning here: {listed(unknown)};"
            " running without them would change the model's output"
        )


def listed(names: Sequence[str], limit: int = 4) -> str:
    """The first few names, and how many more there are."""
    rest = len(names) - limit
    return ", ".join(map(shown, names[:limit])) + (f" and {rest} more" if rest > 0 else "")


def shown(name: str) -> str:
    """A name from a file, safe for messages: short and without control characters."""
    return name if name.isprintable() and len(name) <= 80 else ascii(name[:80])
