"""The KV cache on a card.

Kernels access it through kernels/kv.cuh. Rows are written in their stored form at once, also for nodes of a tree, so a
node has the same bytes before and after its commit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dflash_core.backends.cuda.device_state import DeviceState
from dflash_core.backends.cuda.launch import Argument, Launch
from dflash_core.cache_types import CHUNK_BYTES, F16, CachePair
from dflash_core.models.cache_rows import CODECS

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
    position p is in slot p % slots (rings.py). `newest`: a ring of halves of `recent_slots` slots, where `kv` has a
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
    def _ring(self) -> dict[str, object]:
        return {"KV_RING": 1} if self.ring else {}

    @property
    def slots(self) -> int:
        return self.k.shape[2]

    @property
    def nbytes(self) -> int:
        return self.k.nbytes + self.v.nbytes + (self.newest.nbytes if self.newest else 0)

    def layer(self, place: int, head: int = 0) -> tuple[Tensor, Tensor, np.int32]:
        """One layer's cache from kv head `head` on, as arguments of kernels."""
        return self.k[place, head:], self.v[place, head:], np.int32(self.slots)

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
            args: list[Argument] = [state.pointer, streams, np.int32(count), stamps]
            args += [np.int32(self.slots)] if self.ring else []
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
