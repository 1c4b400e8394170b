"""What a drafter on a card stores per position: a ring buffer for each layer with a window, else all positions.

Position p of a layer is in slot p % slots, so a ring holds the newest positions. It has SPARE more slots than a row
sees, so a sequence can be truncated by that many positions without loss. Older rows have been overwritten and come from
host memory. A checkpoint holds the windows before it. During an answer, rows are copied before they are overwritten,
so that drafts can be repeated from any of its positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from dflash_core.backends.cuda.kv import KVCache
from dflash_core.backends.cuda.launch import ceil_div
from dflash_core.errors import Code, ContextError
from dflash_core.snapshots.base import check_tensors

TILE = 64  # a ring's slots are a multiple of this, the largest tile of attention
# Slots of a ring beyond its window: for a block, for what steps in flight may commit, and for what may be pending.
SPARE = 512

# Allocates a tensor of a shape and a dtype in host memory.
Empty = Callable[[Sequence[int], torch.dtype], Tensor]


def _plain(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.empty(tuple(shape), dtype=dtype)


def ring_slots(window: int, positions: int) -> int:
    """Slots of a layer whose rows see `window` positions (0: all), in a sequence of `positions` positions."""
    return min(TILE * ceil_div(window + SPARE, TILE), positions) if window else positions


@dataclass(frozen=True, slots=True)
class Layer:
    """Rows by position, in `tensors` of shape (heads, slots, row), such as keys and values. `window`: positions that a
    row sees, including its own; 0 for all."""

    tensors: tuple[Tensor, ...]
    window: int

    @staticmethod
    def of(kv: KVCache, window: int) -> Layer:
        """From a KV cache of one layer."""
        return Layer((kv.k[0], kv.v[0]), window)

    @property
    def slots(self) -> int:
        return self.tensors[0].shape[1]


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


def cache_table(caches: Sequence[KVCache]) -> Tensor:
    """For each one-layer cache, the struct KeyValues of kernels/kv.cuh: two addresses and a count."""
    addresses = [(kv.k.data_ptr(), kv.v.data_ptr(), kv.slots) for kv in caches]
    return torch.tensor(addresses, dtype=torch.int64, device=caches[0].k.device)


class DraftCaches:
    """The caches of a drafter's layers, as rings or whole.

    `block`: positions of a draft after the committed ones. `positions`: length of the longest sequence, `block`
    included. `slots`: slots of the smallest ring, 0 if every layer holds all positions.
    """

    def __init__(self, layers: Sequence[Layer], block: int, positions: int) -> None:
        self.block, self._layers = block, tuple(layers)
        self._rings = [layer for layer in layers if layer.slots < positions]
        self._whole = [layer for layer in layers if layer.slots >= positions]
        self.slots = min((layer.slots for layer in self._rings), default=0)
        self._window = max(layer.window for layer in layers)
        self._first = 0  # rings hold no positions before this one
        self._copies: list[HostRows] = []  # rows that steps of the current answer have overwritten
        self._copied = 0  # the position where those copies end

    # ---- Rings that have wrapped around ------------------------------------------------------------------------------

    def _oldest(self, length: int) -> int:
        """The first position that rings still hold if `length` positions are committed and a block was drafted."""
        return max(self._first, length + self.block - self.slots)

    def _seen(self, length: int) -> int:
        """The first position that a block after `length` positions may see in a ring."""
        return max(0, length - self._window + 1)

    def forget(self) -> None:
        """Begin an empty sequence."""
        self._first = self._copied = 0
        self._copies.clear()

    def checkpoint(self, length: int, empty: Empty) -> HostRows | None:
        """A copy of the rows in rings that a block after `length` positions sees, in memory that `empty` allocates."""
        return self._copy(self._rings, self._seen(length), length, empty) if self._rings else None

    def checkpoint_sizes(self, length: int) -> list[int]:
        """Bytes of the tensors that `checkpoint` allocates."""
        count = length - self._seen(length)
        return [tensor[:, :1].nbytes * count for layer in self._rings for tensor in layer.tensors]

    def reaches(self, length: int, before: int) -> bool:
        """Whether rings of a sequence of `before` positions still hold what a block after `length` positions sees."""
        return not self._rings or self._oldest(before) <= self._seen(length)

    def restore(self, saved: HostRows | None, length: int, before: int) -> None:
        """Truncate a sequence of `before` positions to `length`. `saved`: the checkpoint made there; None: rings still
        hold what is needed, see `reaches`."""
        self._copies.clear()
        if saved is None:
            self._first = self._oldest(before) if self._rings else 0
            return
        begin, end = saved.begin, min(self._oldest(before), length)
        if begin < end:
            self._put(self._rings, saved.part(begin, end))
        self._first = min(begin, self._oldest(before))
        self._copied = length

    def positions(self, begin: int, end: int) -> tuple[Tensor, ...]:
        """The positions begin..end of the layers that hold all positions, in their stored form."""
        return tuple(tensor[:, begin:end] for layer in self._whole for tensor in layer.tensors)

    def saved_of(self, length: int, tensors: Sequence[Tensor]) -> HostRows | None:
        """The result of `checkpoint` after `length` positions, built from its tensors. Raises SnapshotError."""
        rings, begin = [layer.tensors for layer in self._rings], self._seen(length)
        check_tensors(tensors, [tensor[:, :0] for layer in rings for tensor in layer], length - begin)
        rest = iter(tensors)
        layers = tuple(tuple(next(rest) for _ in layer) for layer in rings)
        return HostRows(begin, length, layers) if layers else None

    def resume(self, saved: HostRows | None, length: int) -> None:
        """Begin another sequence with `length` positions, in stream order and without what `positions` gives; `saved`:
        the checkpoint made there."""
        self.forget()
        if saved is not None:
            self._put(self._rings, saved, wait=False)
            self._first, self._copied = saved.begin, length

    def begin_turn(self, length: int) -> None:
        """Called when an answer begins after `length` positions."""
        self._copies.clear()
        self._copied = self._seen(length)

    def before_steps(self, length: int, committed: int, pending: int) -> None:
        """Copy the rows that coming steps may overwrite. They commit up to `committed` positions after `length`; at
        most `pending` of the `length` positions are not in the caches yet."""
        if self._rings and length + committed + self.block > self._copied + self.slots:
            end = length - pending
            self._copies.append(self._copy(self._rings, self._copied, end))
            self._copied = end

    @contextmanager
    def cut_to(self, at: int, length: int) -> Iterator[None]:
        """Inside the context, a block can be drafted after the first `at` of `length` positions; on exit, the caches
        are as before.

        Raises ContextError if the rows that the block sees are lost.
        """
        if at >= length:
            yield
            return
        missing = self._missing(at, length) if self._rings else []
        # The block's own rows overwrite positions after `at`, so these are saved first.
        copied = [(self._layers, self._copy(self._layers, at, at + self.block))]
        copied += [(tuple(self._rings), self._copy(self._rings, rows.begin, rows.end)) for rows in missing]
        try:
            for rows in missing:
                self._put(self._rings, rows)
            yield
        finally:
            for layers, rows in copied:
                self._put(layers, rows)

    def _missing(self, at: int, length: int) -> list[HostRows]:
        """Copies of rows that a block after `at` positions sees and that rings no longer hold."""
        begin, end = self._seen(at), min(self._oldest(length), at)
        found = [rows.part(max(begin, rows.begin), min(end, rows.end)) for rows in self._copies
                 if max(begin, rows.begin) < min(end, rows.end)]  # fmt: skip
        if sum(rows.end - rows.begin for rows in found) < end - begin:
            raise ContextError(
                f"the drafter no longer has its cache of the context before position {at:,}, which a draft from there "
                "needs; answer this turn again first",
                code=Code.TURN_NOT_HELD,
            )
        return found

    # ---- Rows between card and host ----------------------------------------------------------------------------------

    def _copy(self, layers: Sequence[Layer], begin: int, end: int, empty: Empty = _plain) -> HostRows:
        copies = []
        for layer in layers:
            tensors = tuple(empty((one.shape[0], end - begin, one.shape[2]), one.dtype) for one in layer.tensors)
            for place, slots in _runs(begin, end, layer.slots):
                for to, tensor in zip(tensors, layer.tensors, strict=True):
                    for head in range(len(to)):  # each is contiguous, so torch makes no copy on the card
                        to[head, place : place + len(slots)] = tensor[head, slots.start : slots.stop]
            copies.append(tensors)
        return HostRows(begin, end, tuple(copies))

    def _put(self, layers: Sequence[Layer], rows: HostRows, *, wait: bool = True) -> None:
        for layer, sources in zip(layers, rows.layers, strict=True):
            for place, slots in _runs(rows.begin, rows.end, layer.slots):
                for tensor, source in zip(layer.tensors, sources, strict=True):
                    for head in range(len(source)):
                        part = source[head, place : place + len(slots)]
                        tensor[head, slots.start : slots.stop].copy_(part, non_blocking=not wait)


def _runs(begin: int, end: int, slots: int) -> Iterator[tuple[int, range]]:
    """Positions begin..end as runs of adjacent slots: each run's offset from `begin`, and its slots."""
    at = begin
    while at < end:
        first = at % slots
        count = min(end - at, slots - first)
        yield at - begin, range(first, first + count)
        at += count
