"""The cache of keys and values on a card: who stores, who reads, and what a position takes.

Kernels see it through kernels/kv.cuh; whatever writes a row writes it as it is kept at once, a tree's own nodes
included, so a node and a committed position are the same bytes.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dflash_core.backends.cuda.device_state import DeviceState
from dflash_core.backends.cuda.launch import Argument, Launch
from dflash_core.cache_types import CHUNK_BYTES, F16, CachePair
from dflash_core.models.cache_rows import CODECS

KERNEL_TYPES = {"f16": "KvF16", "bf16": "KvBf16", "q8_0": "KvQ8", "q5_0": "KvQ5", "q4_0": "KvQ4", "tq3_0": "KvTq3"}
"""What kernels/kv.cuh calls them."""
PLANTED = 4096  # rows without meaning that are made, and then repeated


def defines(kv: CachePair) -> dict[str, object]:
    """What kernels that touch keys and values are compiled for."""
    kinds = {"KV_K": KERNEL_TYPES[kv.k.name], "KV_V": KERNEL_TYPES[kv.v.name]}
    return {name: kind for name, kind in kinds.items() if kind != KERNEL_TYPES["f16"]}


class KVCache:
    """Rows of keys and of values, each (layers, kv heads, slots, elements of a row) of its type."""

    def __init__(
        self, layers: int, kv_heads: int, slots: int, head_dim: int, device: torch.device, kv: CachePair = F16
    ) -> None:
        self.kv, self.head_dim = kv, head_dim
        codecs = CODECS[kv.k.name], CODECS[kv.v.name]
        self.k, self.v = (
            torch.zeros(layers, kv_heads, slots, one.elements(head_dim), dtype=one.dtype, device=device)
            for one in codecs
        )
        both = (self.k, self.v)
        rows = [tensor[layer, head] for tensor in both for layer in range(layers) for head in range(kv_heads)]
        # Addresses of every [slot][row] array, for kv_commit.
        self._streams = torch.tensor([row.data_ptr() for row in rows], dtype=torch.int64, device=device)

    @property
    def defines(self) -> dict[str, object]:
        """What kernels are compiled for."""
        return defines(self.kv)

    @property
    def slots(self) -> int:
        return self.k.shape[2]

    @property
    def nbytes(self) -> int:
        return self.k.nbytes + self.v.nbytes

    def layer(self, place: int) -> tuple[Tensor, Tensor, np.int32]:
        """One layer's cache as kernels take it."""
        return self.k[place], self.v[place], np.int32(self.slots)

    def commit(self, state: DeviceState, stamps: Tensor) -> list[Launch]:
        """Move the rows of the accepted path to directly after the committed ones, as they are stored: keys and values
        at once, where their rows have one size."""
        chunks = [one.row_bytes(self.head_dim) // CHUNK_BYTES for one in (self.kv.k, self.kv.v)]
        half = len(self._streams) // 2
        parts = [(self._streams, chunks[0])]
        if chunks[0] != chunks[1]:
            parts = [(self._streams[:half], chunks[0]), (self._streams[half:], chunks[1])]
        launches = []
        for streams, count in parts:
            args: list[Argument] = [state.pointer, streams, np.int32(count), stamps]
            launches.append(Launch("accept.cu", "kv_commit", {}, len(streams), count, args))
        return launches

    def plant(self, begin: int, end: int) -> None:
        """Fill slots begin..end with rows of no meaning, for measuring."""
        for tensor, kind in ((self.k, self.kv.k), (self.v, self.kv.v)):
            some = torch.randn(PLANTED, self.head_dim, generator=torch.Generator().manual_seed(1))
            rows = CODECS[kind.name].pack(some).to(tensor.device)
            for at in range(begin, end, PLANTED):
                tensor[:, :, at : min(at + PLANTED, end)] = rows[: min(PLANTED, end - at)]

    def positions(self, begin: int, end: int) -> tuple[Tensor, Tensor]:
        """Slots begin..end of all layers, as they are held."""
        return self.k[:, :, begin:end], self.v[:, :, begin:end]
