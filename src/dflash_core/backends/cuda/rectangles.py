"""Tensors in the form that the card's copy engines need: rows of bytes at a fixed pitch."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Rectangle:
    """Two tensors with `steps` slices of the first dimension, each with `rows` rows of `width` bytes. `to_pitch` and
    `from_pitch`: bytes from one row to the next, in the memory at `to` and at `source`."""

    to: int
    source: int
    steps: int
    rows: int
    width: int
    to_pitch: int
    from_pitch: int

    def part(self, some: slice) -> Rectangle:
        """Some slices of the first dimension; a single row if they are contiguous."""
        begin, end, _ = some.indices(self.steps)
        count, first = end - begin, begin * self.rows
        to, source = self.to + first * self.to_pitch, self.source + first * self.from_pitch
        if self.to_pitch == self.from_pitch == self.width:
            width = count * self.rows * self.width
            return Rectangle(to, source, 1, 1, width, width, width)
        return Rectangle(to, source, count, self.rows, self.width, self.to_pitch, self.from_pitch)


def rectangle(to: Tensor, source: Tensor) -> Rectangle:
    """The rectangle of one copy from `source` to `to`, which have the same shape and type. Raises ValueError if a
    single copy is not enough."""
    shape = tuple(to.shape)
    if shape != tuple(source.shape) or to.dtype != source.dtype:
        raise ValueError(f"{to.dtype} {shape} of {source.dtype} {tuple(source.shape)}")
    layout = _layout(shape, to.stride(), source.stride(), to.element_size())
    return Rectangle(to.data_ptr(), source.data_ptr(), shape[0], *layout)


@lru_cache(maxsize=64)  # all pages of a sequence have the same layout
def _layout(
    shape: tuple[int, ...], to: tuple[int, ...], source: tuple[int, ...], size: int
) -> tuple[int, int, int, int]:
    """Rows per slice of the first dimension, and the bytes of a row and of both pitches."""
    width, at = 1, len(shape)
    while at > 1 and (shape[at - 1] == 1 or to[at - 1] == source[at - 1] == width):
        width *= shape[at - 1]
        at -= 1
    pitches = _pitch(shape[:at], to, width) * size, _pitch(shape[:at], source, width) * size
    return math.prod(shape[1:at]), width * size, *pitches


def _pitch(shape: tuple[int, ...], strides: tuple[int, ...], width: int) -> int:
    """Elements from one row to the next, if rows are numbered consecutively through `shape`."""
    outer = [(size, stride) for size, stride in zip(shape, strides) if size > 1]
    for (_, far), (size, near) in itertools.pairwise(outer):
        if far != size * near:
            raise ValueError(f"rows of sizes {shape} at strides {strides}")
    return outer[-1][1] if outer else width
