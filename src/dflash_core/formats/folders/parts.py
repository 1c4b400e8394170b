"""Matrices of a folder as rows of blocks, whatever tensors they are stored in: what each of them is, and those that are
made of others: rows or blocks of columns in another order, several matrices as one."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from dflash_core.errors import UnsupportedError
from dflash_core.formats.folder_blocks import GENERAL_TYPE, SYMMETRIC_TYPE
from dflash_core.formats.quants import BY_NAME, Bytes, Float32
from dflash_core.formats.weights import WeightFile, shown

GENERAL = {SYMMETRIC_TYPE: GENERAL_TYPE, GENERAL_TYPE: GENERAL_TYPE}
"""Types with the same blocks, and the one that can have the values of all."""


THREADS = 8
AT_ONCE = 256
"""Rows that a thread unpacks at a time; a multiple of eight, which are packed together."""


def unpacked(work: Callable[[int, int], Bytes], rows: int) -> Bytes:
    """The rows that `work` makes of a part of them (begin, end), on several threads: a load waits for it."""
    if rows < 2 * AT_ONCE:
        return work(0, rows)
    begins = range(0, rows, AT_ONCE)
    with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as pool:
        parts = pool.map(lambda begin: (begin, work(begin, min(begin + AT_ONCE, rows))), begins)
        _, first = next(parts)
        found = np.empty((rows, first.shape[1]), np.uint8)
        found[: len(first)] = first
        for begin, part in parts:
            found[begin : begin + len(part)] = part
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A matrix of a folder.

    name: the tensor to name in messages. type: of its blocks (`formats/quants.py`). sizes: its shape as a tensor; rows
    are those of the last dimension. read: rows from one number to another as blocks, (rows, bytes per row); raises
    FormatError. factors: what the matrix, or each of several, is multiplied by, () for nothing. settle: what gives the
    same with its zeros and its order read, as what a folder says of them may be wrong; None where there are none.
    """

    name: str
    type: str
    sizes: tuple[int, ...]
    read: Callable[[int, int], Bytes]
    factors: tuple[float, ...] = ()
    settle: Callable[[], Part] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return math.prod(self.sizes[:-1]), self.sizes[-1]

    def settled(self) -> Part:
        """See `settle`. Raises FormatError or UnsupportedError."""
        return self if self.settle is None else self.settle()


def plain(file: WeightFile, name: str) -> Part:
    """A tensor of floats, as stored. A tensor of one dimension is a row."""
    info = file.tensors[name]
    return Part(name, info.type, info.shape, lambda begin, end: file.raw(name, slice(begin, end)))


def computed(name: str, sizes: tuple[int, ...], values: Callable[[], Float32]) -> Part:
    """A small tensor of floats, which `values` computes when it is read."""

    def read(begin: int, end: int) -> Bytes:
        return np.ascontiguousarray(values(), np.float32).reshape(-1, sizes[-1])[begin:end].view(np.uint8)

    return Part(name, "F32", sizes, read)


def rows_in_order(part: Part, order: Sequence[int]) -> Part:
    """Row i is row `order[i]` of another matrix, of which it may be a part."""

    def read(begin: int, end: int) -> Bytes:
        some = order[begin:end]
        if some and max(some) - min(some) < 2 * len(some):  # in one piece: a disk reads it faster than its runs
            first = min(some)
            rows: Bytes = part.read(first, max(some) + 1)[np.array(some) - first]
            return rows
        found = [part.read(first, last) for first, last in _runs(some)]
        return np.concatenate(found) if found else part.read(0, 0)

    sizes = part.sizes if len(order) == part.shape[0] else (len(order), part.shape[1])
    return replace(part, sizes=sizes, read=read, settle=lambda: rows_in_order(part.settled(), order))


def _runs(order: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Consecutive numbers as ranges."""
    for _, run in itertools.groupby(enumerate(order), lambda one: one[1] - one[0]):
        numbers = [number for _, number in run]
        yield numbers[0], numbers[-1] + 1


def columns_in_order(part: Part, order: Sequence[int], width: int) -> Part:
    """Column group i of `width` columns is group `order[i]` of another matrix. Raises UnsupportedError where a group is
    not whole blocks."""
    block = BY_NAME[part.type].block
    if width % block:
        raise UnsupportedError(
            f"{shown(part.name)}: groups of {block} weights over heads of {width} whose order changes,"
            " expected groups that do not cross heads; use a file with smaller groups"
        )

    def read(begin: int, end: int) -> Bytes:
        rows = part.read(begin, end)
        return rows.reshape(len(rows), len(order), -1)[:, list(order)].reshape(rows.shape)

    return replace(part, read=read, settle=lambda: columns_in_order(part.settled(), order, width))


def stack(parts: Sequence[Part]) -> Part:
    """Matrices of one shape and type, one after the other: experts. Raises UnsupportedError where they differ."""
    first, types = parts[0], {part.type for part in parts}
    for part in parts:
        if (GENERAL.get(part.type, part.type), part.shape) != (GENERAL.get(first.type, first.type), first.shape):
            raise UnsupportedError(
                f"{shown(part.name)} is {part.type} {list(part.shape)}, expected {first.type} {list(first.shape)}"
                " as the expert before it; use a file whose experts are stored alike"
            )

    def read(begin: int, end: int) -> Bytes:
        each = first.shape[0]
        experts = range(begin // each, -(-end // each))
        found = [parts[one].read(max(begin - one * each, 0), min(end - one * each, each)) for one in experts]
        return np.concatenate(found) if found else first.read(0, 0)

    factors = (
        tuple(one for part in parts for one in part.factors or (1.0,)) if any(one.factors for one in parts) else ()
    )
    kind = first.type if len(types) == 1 else GENERAL[first.type]
    settle = (lambda: stack([part.settled() for part in parts])) if any(one.settle for one in parts) else None
    return Part(first.name, kind, (len(parts), *first.shape), read, factors, settle)
