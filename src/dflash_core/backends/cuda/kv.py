"""Rows by position on a card: the KV cache, and rings of the newest positions.

Kernels access the cache through kernels/kv.cuh. Rows are written in their stored form at once, also for nodes of a
tree, so a node has the same bytes before and after its commit.

In a ring position p is in slot p % slots. A ring has more slots than a row sees, so a sequence can be truncated by some
positions without loss. Older rows have been overwritten and come from host memory: a checkpoint holds what a row after
it sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dflash_core.backends.cuda.device_state import DeviceState
from dflash_core.backends.cuda.launch import Argument, Launch, ceil_div
from dflash_core.cache_types import CHUNK_BYTES, F16, CachePair
from dflash_core.models.cache_rows import CODECS
from dflash_core.snapshots.base import Rows

KERNEL_TYPES = {"f16": "KvF16", "bf16": "KvBf16", "q8_0": "KvQ8", "q5_0": "KvQ5", "q4_0": "KvQ4", "tq3_0": "KvTq3"}
"""The names of the cache types in kernels/kv.cuh."""
FILLED_AT_ONCE = 4096  # random rows that `fill` generates and then repeats


def defines(kv: CachePair) -> dict[str, object]:
    """Defines of kernels that read or write keys and values."""
    kinds = {"KV_K": KERNEL_TYPES[kv.k.name], "KV_V": KERNEL_TYPES[kv.v.name]}
    found: dict[str, object] = {name: kind for name, kind in kinds.items() if kind != KERNEL_TYPES["f16"]}
    return {**found, "RECENT": kv.recent} if kv.recent else found


class KVCache:
    """Rows of keys and of values, each of shape (layers, kv heads, slots, elements of a row) in its own type. `ring`:
    position p is in slot p % slots. `newest`: a ring of halves of `recent_slots` slots, where `kv` has a
    recent window; keys in it are in the order of kernels/kv_f16.cuh."""

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        slots: int,
        head_dim: int,
        device: torch.device,
        kv: CachePair = F16,
        *,
        ring: bool = False,
        recent_slots: int = 0,
    ) -> None:
        self.kv, self.head_dim, self.ring = kv, head_dim, ring
        self.newest: KVCache | None = None
        if kv.recent:
            self.newest = KVCache(layers, kv_heads, recent_slots, head_dim, device, F16, ring=True)
        codecs = CODECS[kv.k.name], CODECS[kv.v.name]
        self.k, self.v = (
            torch.zeros(layers, kv_heads, slots, one.elements(head_dim), dtype=one.dtype, device=device)
            for one in codecs
        )
        # Addresses of every [slot][row] array, for kv_commit.
        streams = [
            tensor.data_ptr() + row * tensor.stride(1) * tensor.itemsize
            for tensor in (self.k, self.v)
            for row in range(layers * kv_heads)
        ]
        self._streams = torch.tensor(streams, dtype=torch.int64, device=device)

    @property
    def defines(self) -> dict[str, object]:
        """Defines of kernels that read or write this cache."""
        return {**defines(self.kv), **self._ring}

    @property
    def past_defines(self) -> dict[str, object]:
        """The same for kernels that read every position as it is packed, those of a recent window too."""
        return {**defines(self.kv.past), **self._ring}

    @property
    def _ring(self) -> dict[str, object]:
        return {"KV_RING": 1} if self.ring else {}

    @property
    def slots(self) -> int:
        return self.k.shape[2]

    @property
    def nbytes(self) -> int:
        return self.k.nbytes + self.v.nbytes + (self.newest.nbytes if self.newest else 0)

    def layer(self, place: int, head: int = 0) -> tuple[Tensor, Tensor, int]:
        """One layer's cache from kv head `head` on, as arguments of kernels."""
        return self.k[place, head:], self.v[place, head:], self.slots

    def recent(self, place: int) -> Sequence[Argument]:
        """The same of its halves, for kernels with RECENT_PARAMETER."""
        return self.newest.layer(place) if self.newest else ()

    def commit(self, state: DeviceState, stamps: Tensor) -> list[Launch]:
        """Move the stored rows of the accepted path to directly after the committed ones; keys and values in one launch
        if their rows have the same size."""
        chunks = [one.row_bytes(self.head_dim) // CHUNK_BYTES for one in (self.kv.k, self.kv.v)]
        half = len(self._streams) // 2
        parts = [(self._streams, chunks[0])]
        if chunks[0] != chunks[1]:
            parts = [(self._streams[:half], chunks[0]), (self._streams[half:], chunks[1])]
        launches = []
        for streams, count in parts:
            args: list[Argument] = [state.pointer, streams, count, stamps]
            args += [self.slots] if self.ring else []
            launches.append(Launch("accept.cu", "kv_commit", self._ring, len(streams), count, args))
        return launches + (self.newest.commit(state, stamps) if self.newest else [])

    def fill(self, begin: int, end: int) -> None:
        """Fill slots begin..end with random rows, for measurements; a ring whole if they are more."""
        if end > self.slots:
            begin, end = 0, self.slots
        for tensor, kind in ((self.k, self.kv.k), (self.v, self.kv.v)):
            some = torch.randn(FILLED_AT_ONCE, self.head_dim, generator=torch.Generator().manual_seed(1))
            rows = CODECS[kind.name].pack(some).to(tensor.device)
            for at in range(begin, end, FILLED_AT_ONCE):
                tensor[:, :, at : min(at + FILLED_AT_ONCE, end)] = rows[: min(FILLED_AT_ONCE, end - at)]
        if self.newest:
            self.newest.fill(0, self.newest.slots)

    def positions(self, begin: int, end: int) -> tuple[Tensor, Tensor]:
        """Slots begin..end of all layers, in their stored form."""
        return self.k[:, :, begin:end], self.v[:, :, begin:end]


TILE = 64  # a ring's slots are a multiple of this, the largest tile of attention

# Allocates a tensor of a shape and a dtype in host memory.
Empty = Callable[[Sequence[int], torch.dtype], Tensor]
Tensors = tuple[Tensor, ...]


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


class SequenceState:
    """A part of a sequence's state, as checkpoints and snapshots store it: tensors in host memory.

    What is not overridden is for state that only grows: a rewind truncates it, so nothing else is to be done.
    """

    def like(self, length: int) -> Tensors:
        """Tensors of the types and shapes of those that `checkpoint` gives after `length` positions."""
        return ()

    def checkpoint(self, length: int, empty: Empty) -> Tensors:
        """Copies of what truncating to the committed `length` positions cannot restore, in host memory that `empty`
        allocates; complete once the device is synchronized."""
        return ()

    def reaches(self, length: int, before: int) -> bool:
        """Whether truncating a sequence of `before` positions to `length` restores all that a row there sees."""
        return True

    def restore(self, saved: Tensors | None, length: int = 0, before: int = 0) -> None:
        """Go from `before` positions to a checkpoint `saved` at `length`, which may be later; without tensors where the
        state `reaches` so far. None: to the empty state."""

    def positions(self, begin: int, end: int) -> Tensors:
        """State of the positions begin..end in its stored form."""
        return ()


def part(rows: Rows, begin: int, end: int) -> Rows:
    """Only the rows of positions begin..end, of layers' tensors (heads, positions, row)."""
    inside = slice(begin - rows.begin, end - rows.begin)
    return Rows(begin, end, tuple(one[:, inside] for one in rows.tensors))


class Rings(SequenceState):
    """The rows of layers, as rings or whole, and which positions the rings still have.

    `ahead`: positions after the committed ones that a step may write. `positions`: length of the longest sequence,
    `ahead` included. `slots`: slots of the smallest ring, 0 if every layer has all positions.
    """

    def __init__(self, layers: Sequence[Layer], ahead: int, positions: int) -> None:
        self.ahead = ahead
        self._rings = [layer for layer in layers if layer.ring(positions)]
        self._whole = [layer for layer in layers if not layer.ring(positions)]
        self.slots = min((layer.slots for layer in self._rings), default=0)
        self._widest = max(layers, key=lambda layer: layer.window)
        self._first = 0  # rings have no positions before this one

    def oldest(self, length: int) -> int:
        """The first position that rings still have after a step behind `length` committed positions."""
        return max(self._first, length + self.ahead - self.slots)

    def seen(self, length: int) -> int:
        """The first position in a ring that a row after `length` positions may see."""
        return self._widest.seen(length)

    def undo(self, end: int) -> None:
        """Rows of positions up to `end` were written, and are given up."""
        self._first = max(self._first, end - self.slots)

    def reaches(self, length: int, before: int) -> bool:
        return not self._rings or self.oldest(before) <= self.seen(length)

    def like(self, length: int) -> Tensors:
        count = length - self.seen(length)
        return tuple(tensor[:, :count] for layer in self._rings for tensor in layer.tensors)

    def checkpoint(self, length: int, empty: Empty) -> Tensors:
        """The rows in rings that a row after `length` positions sees."""
        return copied(self._rings, self.seen(length), length, empty).tensors if self._rings else ()

    def restore(self, saved: Tensors | None, length: int = 0, before: int = 0) -> None:
        if saved is None:
            self._first = 0
        if saved is None or not self._rings:
            return
        rows = Rows(self.seen(length), length, saved) if saved else None
        if before < length:  # another sequence, in stream order
            self._first = 0
            if rows is not None:
                put(self._rings, rows, wait=False)
                self._first = rows.begin
            return
        self._first = oldest = self.oldest(before)
        if rows is not None:
            if rows.begin < min(oldest, length):
                put(self._rings, part(rows, rows.begin, min(oldest, length)))
            self._first = min(rows.begin, oldest)

    def positions(self, begin: int, end: int) -> Tensors:
        return tuple(tensor[:, begin:end] for layer in self._whole for tensor in layer.tensors)


def copies(tensors: Sequence[Tensor], empty: Empty) -> Tensors:
    """Copies in host memory that `empty` allocates, complete once the device is synchronized."""
    return tuple(empty(one.shape, one.dtype).copy_(one, non_blocking=True) for one in tensors)


def _plain(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.empty(tuple(shape), dtype=dtype)


def copied(layers: Sequence[Layer], begin: int, end: int, empty: Empty = _plain) -> Rows:
    """Copies of the positions begin..end, complete once the device is synchronized, or at once in pageable memory."""
    tensors = [tensor for layer in layers for tensor in layer.tensors]
    rows = Rows(begin, end, tuple(empty((one.shape[0], end - begin, one.shape[2]), one.dtype) for one in tensors))
    for on_card, on_host in _parts(layers, rows):
        on_host.copy_(on_card, non_blocking=True)
    return rows


def put(layers: Sequence[Layer], rows: Rows, *, wait: bool = True) -> None:
    """Copy rows back to where their positions are."""
    for on_card, on_host in _parts(layers, rows):
        on_card.copy_(on_host, non_blocking=not wait)


def _parts(layers: Sequence[Layer], rows: Rows) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows of layers and their place in `rows`, in pieces that are contiguous: torch then makes no copy on the card."""
    tensors = [(layer, tensor) for layer in layers for tensor in layer.tensors]
    for (layer, tensor), on_host in zip(tensors, rows.tensors, strict=True):
        for place, slots in slot_runs(rows.begin, rows.end, layer.slots):
            for head in range(len(tensor)):
                yield tensor[head, slots.start : slots.stop], on_host[head, place : place + len(slots)]
