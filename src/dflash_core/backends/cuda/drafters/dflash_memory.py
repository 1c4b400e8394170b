"""The memory of a DFlash drafter on a card: caches, pending features and scratch, without weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from dflash_core.backends.cuda.drafters.caches import DraftCaches, cache_table, draft_slots
from dflash_core.backends.cuda.drafters.convolution import ConvolutionRows
from dflash_core.backends.cuda.drafters.dflash_weights import DeviceDraft
from dflash_core.backends.cuda.drafters.in_caches import PENDING_ROWS
from dflash_core.backends.cuda.kv import KVCache
from dflash_core.backends.cuda.launch import At
from dflash_core.backends.cuda.layers.base import PassBuffers
from dflash_core.backends.cuda.layers.split_attention import SplitOrder
from dflash_core.backends.cuda.layers.splits import Splits
from dflash_core.backends.cuda.products import Arena, TensorSpec
from dflash_core.backends.cuda.rings import Layer
from dflash_core.backends.cuda.state import PASS_ROWS
from dflash_core.cache_types import F16, CachePair


class DFlashMemory:
    """The drafter's memory for `context` positions, without weights. `kv`: the types of keys and values in layers that
    see the whole context; layers with a window store f16."""

    def __init__(self, draft: DeviceDraft, context: int, arena: Arena, own: Arena, kv: CachePair) -> None:
        device, config = draft.device.torch_device, draft.config
        self.rows = config.block_size
        self.block = 1 + config.depths  # at least `rows`
        positions = context + self.block  # the block's own rows come after the context
        slots, heads = [draft_slots(layer.window, positions) for layer in draft.layers], draft.heads
        kinds = [kv.windowed if layer.window else kv for layer in draft.layers]
        sizes = zip(slots, kinds, strict=True)
        self.kv = [KVCache(1, heads.kv_heads, count, heads.head_dim, device, kind) for count, kind in sizes]
        self.caches = DraftCaches(
            [Layer.of(kv, layer.window) for kv, layer in zip(self.kv, draft.layers, strict=True)], self.block, positions
        )
        self._table = cache_table(self.kv)
        pending, fused = pending_rows(draft), fused_rows(draft)
        rest = own.after(*pending, *fused, *convolution_rows(draft))
        self.buffers = PassBuffers(config.embedding_length, *draft.projections(), rest, arena)
        width, vocab = config.embedding_length, config.heads.draft_vocab or config.vocab_size or 0
        self.pairs = draft.pairs.table(self.rows, width, vocab, device) if draft.pairs else None
        inside = self.buffers.inside
        self.splits = {kind: Splits(split_order(draft, context, kind), draft.heads, inside) for kind in (kv, F16)}
        self.pending, *kept = own.carve(*pending, *fused)
        self.fused = kept[0] if kept else None
        self.convolution: ConvolutionRows | None = None
        if config.heads.conv:
            convolved = own.after(*pending, *fused)
            self.convolution = ConvolutionRows(config.heads.conv, self.rows, config.embedding_length, convolved)
        self.counts = torch.tensor([self.rows, PASS_ROWS], dtype=torch.int32, device=device)

    @property
    def nbytes(self) -> Mapping[str, int]:
        return {"drafter KV": sum(kv.nbytes for kv in self.kv)}

    def table(self, first: int) -> At:
        """The caches from layer `first` on, as an argument of draft_update."""
        return At(self._table, first * self._table.shape[1])


def pending_rows(draft: DeviceDraft) -> Sequence[TensorSpec]:
    """Pending features, times HEADROOM."""
    return [((PENDING_ROWS, draft.fc.columns), torch.float16)]


def fused_rows(draft: DeviceDraft) -> Sequence[TensorSpec]:
    """The context's rows before the norm of each layer, if layers norm them."""
    return () if draft.aux_norm is None else [((PASS_ROWS, draft.config.embedding_length), torch.float32)]


def convolution_rows(draft: DeviceDraft) -> Sequence[TensorSpec]:
    """Memory that convolutions need for a block, if the drafter has convolutions."""
    config, conv = draft.config, draft.config.heads.conv
    return ConvolutionRows.pieces(conv, config.block_size, config.embedding_length) if conv else ()


def split_order(draft: DeviceDraft, context: int, kv: CachePair) -> SplitOrder:
    """The order of sums in the block's attention, in a layer with keys and values of the types `kv`."""
    card, slots = draft.device.card, context + draft.config.block_size
    return SplitOrder.of(draft.heads, slots, card.multiprocessors, card.shared_bytes, trees=False, kv=kv)
