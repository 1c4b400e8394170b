"""Matrices of a folder as rows of blocks, whatever tensors they are stored in: the interface, and what is made of
other matrices: rows or blocks of columns in another order, several matrices as one."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

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


class Part(Protocol):
    """A matrix: `shape` (rows, columns), the type of its blocks (`formats/quants.py`), and what all its values are
    multiplied by."""

    @property
    def name(self) -> str:
        """The tensor to name in messages."""

    @property
    def type(self) -> str: ...

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def factor(self) -> float: ...

    def read(self, begin: int, end: int) -> Bytes:
        """Rows as blocks, (end - begin, bytes per row). Raises FormatError."""


@runtime_checkable
class Unsettled(Part, Protocol):
    """A matrix of whose type only what the folder says is known."""

    def settled(self) -> Part:
        """The same, its zeros and its order read. Raises FormatError or UnsupportedError."""


def settled(part: Part) -> Part:
    """A part with what the types of its matrices depend on read from the file."""
    match part:
        case Unsettled():
            return part.settled()
        case _InOrder():
            return replace(part, part=settled(part.part))
        case Stack():
            return Stack(tuple(map(settled, part.parts)))
    return part


@runtime_checkable
class Slabs(Part, Protocol):
    """Matrices of experts that are read from one tensor."""

    @property
    def slabs(self) -> int:
        """How many there are."""


def row_bytes(part: Part) -> int:
    """Bytes of a row."""
    kind = BY_NAME[part.type]
    return part.shape[1] // kind.block * kind.size


@dataclass(frozen=True, slots=True)
class Plain:
    """A tensor of floats, as stored. A tensor of one dimension is a row; more than two are rows of the last one."""

    file: WeightFile
    name: str
    factor: float = 1.0

    @property
    def type(self) -> str:
        return self.file.tensors[self.name].type

    @property
    def shape(self) -> tuple[int, int]:
        info = self.file.tensors[self.name]
        return info.n_elements // info.shape[-1], info.shape[-1]

    def read(self, begin: int, end: int) -> Bytes:
        return self.file.raw(self.name, slice(begin, end))


@dataclass(frozen=True, slots=True)
class Computed:
    """A small tensor of floats of the shape `sizes`, which `values` computes when it is read."""

    name: str
    sizes: tuple[int, ...]
    values: Callable[[], Float32]
    type: str = "F32"
    factor: float = 1.0

    @property
    def shape(self) -> tuple[int, int]:
        return math.prod(self.sizes[:-1]), self.sizes[-1]

    def read(self, begin: int, end: int) -> Bytes:
        found = np.ascontiguousarray(self.values(), np.float32).reshape(self.shape)
        return found[begin:end].view(np.uint8)


@dataclass(frozen=True, slots=True)
class _InOrder:
    """Another matrix, of the same shape, whose rows or columns change places."""

    part: Part
    order: tuple[int, ...]

    @property
    def name(self) -> str:
        return self.part.name

    @property
    def type(self) -> str:
        return self.part.type

    @property
    def shape(self) -> tuple[int, int]:
        return self.part.shape

    @property
    def factor(self) -> float:
        return self.part.factor


@dataclass(frozen=True, slots=True)
class RowsInOrder(_InOrder):
    """Row i is row `order[i]` of another matrix."""

    def read(self, begin: int, end: int) -> Bytes:
        order = self.order[begin:end]
        if order and max(order) - min(order) < 2 * len(order):  # in one piece: a disk reads it faster than its runs
            first = min(order)
            rows: Bytes = self.part.read(first, max(order) + 1)[np.array(order) - first]
            return rows
        found = [self.part.read(first, last) for first, last in _runs(order)]
        return np.concatenate(found) if found else self.part.read(0, 0)


def _runs(order: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Consecutive numbers as ranges."""
    for _, run in itertools.groupby(enumerate(order), lambda one: one[1] - one[0]):
        numbers = [number for _, number in run]
        yield numbers[0], numbers[-1] + 1


@dataclass(frozen=True, slots=True)
class ColumnsInOrder(_InOrder):
    """Column group i of `width` columns is group `order[i]` of another matrix.

    Raises UnsupportedError where a group is not whole blocks.
    """

    width: int

    def __post_init__(self) -> None:
        block = BY_NAME[self.part.type].block
        if self.width % block:
            raise UnsupportedError(
                f"{shown(self.part.name)}: groups of {block} weights over heads of {self.width} whose order changes,"
                " expected groups that do not cross heads; use a file with smaller groups"
            )

    def read(self, begin: int, end: int) -> Bytes:
        rows = self.part.read(begin, end)
        groups = rows.reshape(len(rows), len(self.order), -1)
        return groups[:, list(self.order)].reshape(rows.shape)


@dataclass(frozen=True, slots=True)
class Stack:
    """Matrices of one shape and type, one after the other: experts. Raises UnsupportedError where they differ."""

    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        for part in self.parts:
            first = self.parts[0]
            if (GENERAL.get(part.type, part.type), part.shape) != (GENERAL.get(first.type, first.type), first.shape):
                raise UnsupportedError(
                    f"{shown(part.name)} is {part.type} {list(part.shape)}, expected {first.type} {list(first.shape)}"
                    " as the expert before it; use a file whose experts are stored alike"
                )

    @property
    def name(self) -> str:
        return self.parts[0].name

    @property
    def type(self) -> str:
        types = {part.type for part in self.parts}
        return types.pop() if len(types) == 1 else GENERAL[types.pop()]

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.parts[0].shape
        return rows * len(self.parts), columns

    @property
    def factor(self) -> float:
        return 1.0  # of each of them: `factors`

    @property
    def factors(self) -> tuple[float, ...]:
        """What each matrix is multiplied by, () for nothing."""
        found = tuple(part.factor for part in self.parts)
        return found if any(factor != 1 for factor in found) else ()

    def read(self, begin: int, end: int) -> Bytes:
        each = self.parts[0].shape[0]
        found = []
        for index in range(begin // each, -(-end // each)):
            at = index * each
            found.append(self.parts[index].read(max(begin - at, 0), min(end - at, each)))
        return np.concatenate(found) if found else self.parts[0].read(0, 0)


def sizes_of(part: Part) -> tuple[int, ...]:
    """The shape of a part as a tensor."""
    match part:
        case Plain():
            return part.file.tensors[part.name].shape
        case Computed():
            return part.sizes
        case Stack():
            return (len(part.parts), *part.parts[0].shape)
        case Slabs():
            return (part.slabs, part.shape[0] // part.slabs, part.shape[1])
    return part.shape
