"""What a drafter on a card stores per position: a ring for each layer with a window, else all positions.

During an answer, rows of rings are copied before they are overwritten, so that drafts can be repeated from any of its
positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from dflash_core.backends.cuda.kv import KVCache
from dflash_core.backends.cuda.rings import HostRows, Layer, Rings, Tensors, copied, put, ring_slots
from dflash_core.errors import Code, ContextError

# Slots of a ring beyond its window: for a block, for what steps in flight may commit, and for what may be pending.
SPARE = 512


def draft_slots(window: int, positions: int) -> int:
    """Slots of a layer whose rows see `window` positions (0: all), in a sequence of `positions` positions."""
    return ring_slots(window, SPARE, positions)


def cache_table(caches: Sequence[KVCache]) -> Tensor:
    """For each one-layer cache, the struct KeyValues of kernels/kv.cuh: two addresses and a count."""
    addresses = [(kv.k.data_ptr(), kv.v.data_ptr(), kv.slots) for kv in caches]
    return torch.tensor(addresses, dtype=torch.int64, device=caches[0].k.device)


class DraftCaches(Rings):
    """The caches of a drafter's layers. `ahead`: positions of a draft after the committed ones, its block."""

    def __init__(self, layers: Sequence[Layer], ahead: int, positions: int) -> None:
        super().__init__(layers, ahead, positions)
        self._layers = tuple(layers)
        self._copies: list[HostRows] = []  # rows that steps of the current answer have overwritten
        self._copied = 0  # the position where those copies end

    def restore(self, saved: Tensors | None, length: int = 0, before: int = 0) -> None:
        super().restore(saved, length, before)
        self._copies.clear()
        if saved is None or saved:
            self._copied = length

    def begin_turn(self, length: int) -> None:
        """Called when an answer begins after `length` positions."""
        self._copies.clear()
        self._copied = self.seen(length)

    def before_steps(self, length: int, committed: int, pending: int) -> None:
        """Copy the rows that coming steps may overwrite. They commit up to `committed` positions after `length`; at
        most `pending` of the `length` positions are not in the caches yet."""
        if self._rings and length + committed + self.ahead > self._copied + self.slots:
            end = length - pending
            self._copies.append(copied(self._rings, self._copied, end))
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
        saved = [(self._layers, copied(self._layers, at, at + self.ahead))]
        saved += [(tuple(self._rings), copied(self._rings, rows.begin, rows.end)) for rows in missing]
        try:
            for rows in missing:
                put(self._rings, rows)
            yield
        finally:
            for layers, rows in saved:
                put(layers, rows)

    def _missing(self, at: int, length: int) -> list[HostRows]:
        """Copies of rows that a block after `at` positions sees and that rings no longer hold."""
        begin, end = self.seen(at), min(self.oldest(length), at)
        found = [rows.part(max(begin, rows.begin), min(end, rows.end)) for rows in self._copies
                 if max(begin, rows.begin) < min(end, rows.end)]  # fmt: skip
        if sum(rows.end - rows.begin for rows in found) < end - begin:
            raise overwritten(at)
        return found


def overwritten(at: int) -> ContextError:
    """A draft after the first `at` positions needs rows that are no longer there."""
    return ContextError(
        f"the drafter no longer has its cache of the context before position {at:,}, which a draft from there "
        "needs; answer this turn again first",
        code=Code.TURN_NOT_IN_SESSION,
    )
