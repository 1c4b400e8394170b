"""A DFlash drafter's part of a chunk of a prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from dflash_core.backends.cuda.chunk import HEADROOM, Chunk
from dflash_core.backends.cuda.device_state import DeviceState
from dflash_core.backends.cuda.drafters.base import ChunkDrafter
from dflash_core.backends.cuda.drafters.dflash_weights import Context, DeviceDraft
from dflash_core.backends.cuda.launch import Launch
from dflash_core.backends.cuda.layers.norm import chunk_norm
from dflash_core.backends.cuda.products import Op, TensorSpec

Store = Callable[[Context, Tensor, int], Iterable[Launch]]
"""The launches that append the rows of a context's projection (rows, width) to the caches."""


def chunk_buffers(draft: DeviceDraft, rows: int) -> Sequence[Sequence[TensorSpec]]:
    """Memory that a chunk of `rows` rows needs in the arena."""
    context = draft.contexts[0].count * 2 * draft.heads.kv_heads * draft.heads.head_dim
    return ((((rows, context), torch.float32),),)


def _own_norms(draft: DeviceDraft, context: Context) -> Sequence[Tensor]:
    """The norm of the context's layer, if layers norm the context by themselves."""
    return [draft.layers[context.first].attn_norm] if draft.aux_norm is not None else []


class DFlashChunk(ChunkDrafter):
    """A chunk of a prompt as context: fc is applied in parts, one after each captured layer."""

    def __init__(
        self, draft: DeviceDraft, state: DeviceState, layers: Sequence[int], chunk: Chunk, store: Store
    ) -> None:
        """`layers`: of the target, that are captured."""
        products = chunk.products
        (encoder,) = chunk.lasting
        self.state, self.layers = state, tuple(layers)
        self._chunk, self._encoder = chunk, encoder
        (self._context,) = chunk.arena.carve(*chunk_buffers(draft, chunk.rows)[0])
        (fc,) = draft.fc.matrices
        width = chunk.h.shape[1]
        self._fc = [products.parts(fc, range(width * i, width * (i + 1))) for i in range(len(self.layers))]
        ops, count, norms, eps = chunk.ops, chunk.count, draft.aux_norm, draft.config.rms_eps
        if norms is None:
            # The rows are scaled by HEADROOM, a power of two: only the epsilon added to their mean square must change.
            self._norms = [chunk_norm(ops, count, encoder, draft.enc_output_norm, eps * HEADROOM**2, chunk.x)]
            self._taps = list[Op]()
        else:
            self._norms = [chunk_norm(ops, count, encoder, draft.enc_output_norm, eps, encoder)]
            self._taps = [chunk_norm(ops, count, chunk.h, norm, eps, chunk.x) for norm in norms]
        self._parts = [
            (
                [chunk_norm(ops, count, encoder, norm, eps, chunk.x) for norm in _own_norms(draft, context)],
                [products.parts(matrix) for matrix in context.projection.matrices],
                [ops.add(launch) for launch in store(context, self._context, chunk.rows)],
            )
            for context in draft.contexts
        ]

    def capture(self, layer: int, n: int) -> None:
        if layer not in self.layers:
            return
        rows = self._chunk.x[:n]  # scratch here: the next layer's norm overwrites it
        if self._taps:
            self._taps[self.layers.index(layer)]()
        else:
            torch.mul(self._chunk.h[:n], HEADROOM, out=rows)
        first, parts = layer == min(self.layers), self._fc[self.layers.index(layer)]
        self._chunk.products.multiply(rows, parts, self._encoder[:n], add=not first)

    def update_cache(self, n: int) -> None:
        self.state.push()
        for norm in self._norms:
            norm()
        for norms, matrices, stores in self._parts:
            for norm in norms:
                norm()
            self._chunk.products.multiply_all(self._chunk.x[:n], matrices, self._context[:n])
            for store in stores:
                store()
        self.state.host["draft_length"] = self.state.host["length"]
