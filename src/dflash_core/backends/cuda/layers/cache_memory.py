"""What a sequence stores of keys and values for all layers of one kind: the cache, and which positions it can go back
to."""

from __future__ import annotations

import torch
from torch import Tensor

from dflash_core.backends.cuda.device_state import DeviceState
from dflash_core.backends.cuda.kv import KVCache
from dflash_core.backends.cuda.launch import Launch
from dflash_core.backends.cuda.layers.base import MixerMemory, SequenceNeeds
from dflash_core.backends.cuda.layers.split_attention import HeadShape
from dflash_core.backends.cuda.rings import TILE, Layer, Rings, Tensors, ring_slots
from dflash_core.backends.cuda.state import MAX_NODES
from dflash_core.cache_types import RECENT_STEP, CachePair


def slots_of(context: int) -> int:
    """Cache slots for `context` positions: a tree's nodes are stored after the committed ones."""
    return context + MAX_NODES


class CacheMemory(Rings, MixerMemory):
    """The part of `base.MixerMemory` without the layers. Layers with a window have a ring, and a checkpoint holds the
    window's rows; so have the halves of a recent window. Of others, rewinding only truncates keys and values, and a
    checkpoint is empty.

    A chunk's rows and a tree's nodes are written before the rows that they see are read, so a ring has slots for both
    beyond its window. `kv`: the types of these `layers` layers with a window of `window` positions, 0 for none.
    """

    component = "target KV"

    def __init__(
        self, device: torch.device, layers: int, heads: HeadShape, window: int, kv: CachePair, needs: SequenceNeeds
    ) -> None:
        positions, spare = slots_of(needs.context), max(needs.chunk_rows, TILE) + needs.capacity
        slots = ring_slots(window, spare, positions)
        recent = ring_slots(kv.recent + RECENT_STEP, spare, positions)
        ring = slots < positions
        self.kv = KVCache(layers, heads.kv_heads, slots, heads.head_dim, device, kv, ring=ring, recent_slots=recent)
        rows = [Layer.of(self.kv, window)]
        if self.kv.newest is not None:
            rows.append(Layer.of(self.kv.newest, kv.recent, RECENT_STEP))
        super().__init__(rows, needs.capacity, positions)
        self.detail = f"{needs.kv}, {needs.context:,} positions, {slots:,} in layers with a window" if ring else ""

    @property
    def nbytes(self) -> int:
        return self.kv.nbytes

    def commit(self, state: DeviceState, stamps: Tensor) -> list[Launch]:
        return self.kv.commit(state, stamps)

    def positions(self, begin: int, end: int) -> Tensors:
        """The first dimension is the layer."""
        return () if self.kv.ring else self.kv.positions(begin, end)
