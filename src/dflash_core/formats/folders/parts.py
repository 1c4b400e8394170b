"""Matrices of a folder as rows of blocks, whatever tensors they are stored in: the interface, and what is made of
other matrices: rows or blocks of columns in another order, several matrices as one."""

from __future__ import annotations

import abc
import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

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


class Part(abc.ABC):
    """A matrix of a folder. `name`: the tensor to name in messages; `type`: of its blocks (`formats/quants.py`)."""

    __slots__ = ()
    if TYPE_CHECKING:  # fields of some classes, properties of others

        @property
        @abc.abstractmethod
        def name(self) -> str: ...

        @property
        @abc.abstractmethod
        def type(self) -> str: ...

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape as a tensor."""
        return self.shape

    @property
    def factors(self) -> tuple[float, ...]:
        """What the matrix, or each of several, is multiplied by, () for nothing."""
        return ()

    def settled(self) -> Part:
        """The same, its zeros and its order read: what a folder says of them may be wrong. Raises FormatError or
        UnsupportedError."""
        return self

    @abc.abstractmethod
    def read(self, begin: int, end: int) -> Bytes:
        """Rows as blocks, (end - begin, bytes per row). Raises FormatError."""


@dataclass(frozen=True, slots=True)
class Plain(Part):
    """A tensor of floats, as stored. A tensor of one dimension is a row; more than two are rows of the last one."""

    file: WeightFile
    name: str

    @property
    def type(self) -> str:
        return self.file.tensors[self.name].type

    @property
    def shape(self) -> tuple[int, int]:
        info = self.file.tensors[self.name]
        return info.n_elements // info.shape[-1], info.shape[-1]

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.file.tensors[self.name].shape

    def read(self, begin: int, end: int) -> Bytes:
        return self.file.raw(self.name, slice(begin, end))


@dataclass(frozen=True, slots=True)
class Computed(Part):
    """A small tensor of floats of the shape `stored`, which `values` computes when it is read."""

    name: str
    stored: tuple[int, ...]
    values: Callable[[], Float32]
    type: str = "F32"

    @property
    def shape(self) -> tuple[int, int]:
        return math.prod(self.stored[:-1]), self.stored[-1]

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.stored

    def read(self, begin: int, end: int) -> Bytes:
        found = np.ascontiguousarray(self.values(), np.float32).reshape(self.shape)
        return found[begin:end].view(np.uint8)


@dataclass(frozen=True, slots=True)
class _InOrder(Part):
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
    def factors(self) -> tuple[float, ...]:
        return self.part.factors

    def settled(self) -> Part:
        return replace(self, part=self.part.settled())


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
class Stack(Part):
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
    def sizes(self) -> tuple[int, ...]:
        return len(self.parts), *self.parts[0].shape

    @property
    def factors(self) -> tuple[float, ...]:
        found = [part.factors for part in self.parts]
        return tuple(one for each in found for one in each or (1.0,)) if any(found) else ()

    def settled(self) -> Part:
        return Stack(tuple(part.settled() for part in self.parts))

    def read(self, begin: int, end: int) -> Bytes:
        each = self.parts[0].shape[0]
        found = []
        for index in range(begin // each, -(-end // each)):
            at = index * each
            found.append(self.parts[index].read(max(begin - at, 0), min(end - at, each)))
        return np.concatenate(found) if found else self.parts[0].read(0, 0)
