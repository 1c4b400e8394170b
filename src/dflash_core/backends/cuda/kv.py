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
from dflash_core.backends.cuda.to_host import to_host
from dflash_core.cache_types import CHUNK_BYTES, F16, CachePair
from dflash_core.errors import Code, UnsupportedError
from dflash_core.models.cache_rows import CODECS


class KVCache:
    """Rows of keys and of values, each (layers, kv heads, slots, elements of a row) of its type."""

    def __init__(
        self, layers: int, kv_heads: int, slots: int, head_dim: int, device: torch.device, kv: CachePair = F16
    ) -> None:
        if kv != F16:
            raise UnsupportedError(
                f"a cache of {kv} on a card, expected f16; take that, or run it on the CPU",
                code=Code.NOT_ON_THIS_DEVICE,
            )
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
        return {}

    @property
    def slots(self) -> int:
        return self.k.shape[2]

    @property
    def nbytes(self) -> int:
        return self.k.nbytes + self.v.nbytes

    def layer(self, place: int) -> tuple[Tensor, Tensor, np.int32]:
        """One layer's cache as kernels take it."""
        return self.k[place], self.v[place], np.int32(self.slots)

    def floats(self, place: int, end: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer's first `end` slots as halves, (kv heads, end, head size)."""
        return self.k[place, :, :end], self.v[place, :, :end]

    def commit(self, state: DeviceState, stamps: Tensor) -> Launch:
        """Move the rows of the accepted path to directly behind the committed ones, as they are stored."""
        chunks = self.k.shape[3] * self.k.element_size() // CHUNK_BYTES
        args: list[Argument] = [state.pointer, self._streams, np.int32(chunks), stamps]
        return Launch("accept.cu", "kv_commit", {}, len(self._streams), chunks, args)

    def plant(self, begin: int, end: int) -> None:
        """Fill slots begin..end with rows of no meaning, for measuring."""
        for tensor in (self.k, self.v):
            tensor[:, :, begin:end].normal_()

    def save(self, begin: int, end: int) -> tuple[Tensor, Tensor]:
        """A copy of slots begin..end of all layers."""
        return self.k[:, :, begin:end].clone(), self.v[:, :, begin:end].clone()

    def positions(self, begin: int, end: int) -> tuple[Tensor, Tensor]:
        """The same in host memory."""
        return to_host(self.k[:, :, begin:end]), to_host(self.v[:, :, begin:end])

    def load(self, begin: int, saved: tuple[Tensor, Tensor]) -> None:
        """Put a copy back."""
        for tensor, rows in zip((self.k, self.v), saved):
            tensor[:, :, begin : begin + rows.shape[2]].copy_(rows, non_blocking=True)
