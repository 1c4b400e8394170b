"""Ring buffers of rows by position: position p is in slot p % slots, so a ring holds the newest positions.

A ring has more slots than a row sees, so a sequence can be truncated by some positions without loss. Older rows have
been overwritten and come from host memory: a checkpoint holds what a row after it sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dflash_core.backends.cuda.kv import KVCache
from dflash_core.backends.cuda.launch import ceil_div
from dflash_core.snapshots.base import check_tensors

TILE = 64  # a ring's slots are a multiple of this, the largest tile of attention

# Allocates a tensor of a shape and a dtype in host memory.
Empty = Callable[[Sequence[int], torch.dtype], Tensor]


def ring_slots(window: int, spare: int, positions: int) -> int:
    """Slots of a layer whose rows see `window` positions (0: all), in a sequence of `positions` positions; a ring has
    `spare` slots beyond the window."""
    return min(TILE * ceil_div(window + spare, TILE), positions) if window else positions


def slot_runs(begin: int, end: int, slots: int) -> Iterator[tuple[int, range]]:
    """Positions begin..end as runs of adjacent slots: each run's offset from `begin`, and its slots."""
    at = begin
    while at < end:
        first = at % slots
        count = min(end - at, slots - first)
        yield at - begin, range(first, first + count)
        at += count


@dataclass(frozen=True, slots=True)
class Layer:
    """Rows by position, in `tensors` of shape (heads, slots, row), such as keys and values. `window`: positions that a
    row sees, including its own; 0 for all. `step`: the first of them is a multiple of this; rows with a step are always
    a ring, since `CachePair.past` has them at all positions."""

    tensors: tuple[Tensor, ...]
    window: int
    step: int = 1

    @staticmethod
    def of(kv: KVCache, window: int, step: int = 1) -> Layer:
        """From a KV cache, with the heads of all its layers."""
        return Layer((kv.k.flatten(0, 1), kv.v.flatten(0, 1)), window, step)

    @property
    def slots(self) -> int:
        return self.tensors[0].shape[1]

    def ring(self, positions: int) -> bool:
        """Whether it is a ring in a sequence of so many positions."""
        return self.step > 1 or self.slots < positions

    def seen(self, length: int) -> int:
        """The first position that a row after `length` positions may see."""
        return max(0, length - self.window + 1) // self.step * self.step


@dataclass(frozen=True, slots=True)
class HostRows:
    """Rows of positions begin..end of some layers, in host memory: tensors of shape (heads, positions, row)."""

    begin: int
    end: int
    layers: tuple[tuple[Tensor, ...], ...]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors of all layers."""
        return tuple(tensor for layer in self.layers for tensor in layer)

    def part(self, begin: int, end: int) -> HostRows:
        """Only the rows of positions begin..end."""
        rows = slice(begin - self.begin, end - self.begin)
        return HostRows(begin, end, tuple(tuple(one[:, rows] for one in layer) for layer in self.layers))


class Rings:
    """The rows of layers, as rings or whole, and which positions the rings still hold.

    `ahead`: positions after the committed ones that a step may write. `positions`: length of the longest sequence,
    `ahead` included. `slots`: slots of the smallest ring, 0 if every layer holds all positions.
    """

    def __init__(self, layers: Sequence[Layer], ahead: int, positions: int) -> None:
        self.ahead = ahead
        self._rings = [layer for layer in layers if layer.ring(positions)]
        self._whole = [layer for layer in layers if not layer.ring(positions)]
        self.slots = min((layer.slots for layer in self._rings), default=0)
        self._widest = max(layers, key=lambda layer: layer.window)
        self._first = 0  # rings hold no positions before this one

    def oldest(self, length: int) -> int:
        """The first position that rings still hold after a step behind `length` committed positions."""
        return max(self._first, length + self.ahead - self.slots)

    def seen(self, length: int) -> int:
        """The first position in a ring that a row after `length` positions may see."""
        return self._widest.seen(length)

    def forget(self) -> None:
        """Begin an empty sequence."""
        self._first = 0

    def overwritten(self, end: int) -> None:
        """Rows of positions up to `end` were written, and are given up."""
        self._first = max(self._first, end - self.slots)

    def reaches(self, length: int, before: int) -> bool:
        """Whether rings of a sequence of `before` positions still hold what a row after `length` positions sees."""
        return not self._rings or self.oldest(before) <= self.seen(length)

    def like(self, length: int) -> tuple[Tensor, ...]:
        """Tensors of the types and shapes of those of `checkpoint`."""
        count = length - self.seen(length)
        return tuple(tensor[:, :count] for layer in self._rings for tensor in layer.tensors)

    def checkpoint(self, length: int, empty: Empty) -> HostRows | None:
        """A copy of the rows in rings that a row after `length` positions sees, in memory that `empty` allocates."""
        return copied(self._rings, self.seen(length), length, empty) if self._rings else None

    def saved_of(self, length: int, tensors: Sequence[Tensor]) -> HostRows | None:
        """The result of `checkpoint` after `length` positions, built from its tensors. Raises SnapshotError."""
        check_tensors(tensors, self.like(length))
        rest = iter(tensors)
        layers = tuple(tuple(next(rest) for _ in layer.tensors) for layer in self._rings)
        return HostRows(self.seen(length), length, layers) if layers else None

    def restore(self, saved: HostRows | None, length: int, before: int) -> None:
        """Truncate a sequence of `before` positions to `length`. `saved`: the checkpoint made there; None: rings still
        hold what is needed, see `reaches`."""
        if not self._rings:
            return
        oldest = self.oldest(before)
        if saved is None:
            self._first = oldest
            return
        begin, end = saved.begin, min(oldest, length)
        if begin < end:
            put(self._rings, saved.part(begin, end))
        self._first = min(begin, oldest)

    def resume(self, saved: HostRows | None, length: int) -> None:
        """Begin another sequence with `length` positions, in stream order and without what `positions` gives; `saved`:
        the checkpoint made there."""
        self.forget()
        if saved is not None:
            put(self._rings, saved, wait=False)
            self._first = saved.begin

    def positions(self, begin: int, end: int) -> tuple[Tensor, ...]:
        """The positions begin..end of the layers that hold all positions, in their stored form."""
        return tuple(tensor[:, begin:end] for layer in self._whole for tensor in layer.tensors)


def copies(tensors: Sequence[Tensor], empty: Empty) -> tuple[Tensor, ...]:
    """Copies in host memory that `empty` allocates, complete once the device is synchronized."""
    return tuple(empty(one.shape, one.dtype).copy_(one, non_blocking=True) for one in tensors)


def _plain(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.empty(tuple(shape), dtype=dtype)


def copied(layers: Sequence[Layer], begin: int, end: int, empty: Empty = _plain) -> HostRows:
    """Copies of the positions begin..end, complete once the device is synchronized, or at once in pageable memory."""
    found = []
    for layer in layers:
        tensors = tuple(empty((one.shape[0], end - begin, one.shape[2]), one.dtype) for one in layer.tensors)
        for place, slots in slot_runs(begin, end, layer.slots):
            for to, tensor in zip(tensors, layer.tensors, strict=True):
                for head in range(len(to)):  # each is contiguous, so torch makes no copy on the card
                    rows = to[head, place : place + len(slots)]
                    rows.copy_(tensor[head, slots.start : slots.stop], non_blocking=True)
        found.append(tensors)
    return HostRows(begin, end, tuple(found))


def put(layers: Sequence[Layer], rows: HostRows, *, wait: bool = True) -> None:
    """Copy rows back to where their positions are."""
    for layer, sources in zip(layers, rows.layers, strict=True):
        for place, slots in slot_runs(rows.begin, rows.end, layer.slots):
            for tensor, source in zip(layer.tensors, sources, strict=True):
                for head in range(len(source)):
                    part = source[head, place : place + len(slots)]
                    tensor[head, slots.start : slots.stop].copy_(part, non_blocking=not wait)
