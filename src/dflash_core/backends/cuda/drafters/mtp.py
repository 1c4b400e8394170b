"""An MTP head on a card: its weights, its cache of pairs, its pending pairs and its launches over one sequence.

Pair s is (token s, hidden state after token s - 1), in slot s of the head's own cache. Committed pairs are *pending*
until they are in the cache. The newest token forms the pair that drafts, and every drafted token forms the next pair.
Cache entries of drafted pairs are overwritten later: committed pairs have the target's own hidden states.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from dflash_core.arch import kinds
from dflash_core.backends.cuda.activations import Activations
from dflash_core.backends.cuda.chunk import Chunk
from dflash_core.backends.cuda.drafters.base import ChunkDrafter, OnDevice, TargetSequence, cache_table
from dflash_core.backends.cuda.drafters.chains import BLOCK, ChainDrafter, join_warps
from dflash_core.backends.cuda.kv import KVCache, Layer
from dflash_core.backends.cuda.launch import WARP, At, Launch, ceil_div
from dflash_core.backends.cuda.layers.attention import COMBINE_THREADS
from dflash_core.backends.cuda.layers.attention_weights import AttentionWeights, frequencies
from dflash_core.backends.cuda.layers.base import Pass, PassBuffers
from dflash_core.backends.cuda.layers.embedding import Embedding
from dflash_core.backends.cuda.layers.head import Head
from dflash_core.backends.cuda.layers.norm import Added, chunk_norm, norm_launch
from dflash_core.backends.cuda.layers.split_attention import PREPARE_WARPS, HeadShape, SplitLaunch, SplitOrder, Splits
from dflash_core.backends.cuda.products import Arena, TensorSpec
from dflash_core.backends.cuda.projection import AnyProjection, Matrix, Projection
from dflash_core.backends.cuda.repack import GROUP
from dflash_core.backends.cuda.state import PASS_ROWS
from dflash_core.backends.cuda.target_model import FEED_FORWARDS, DeviceTarget
from dflash_core.backends.cuda.upload import Upload
from dflash_core.cache_types import F16, CachePair
from dflash_core.config import MtpConfig
from dflash_core.drafters.mtp import capabilities

FIRST_PAIR = 1  # there is no pair for token 0
STEP_ROWS = 1 + BLOCK  # of a step's first pass: the pair that drafts, and those of the previous step's longest path


class DeviceMtp(OnDevice):
    """A head's weights: one layer, and the projection of a token with the previous hidden state; and the target, whose
    embedding and norm it shares. `norm`, `embedding`, `head`: None if the target's are used."""

    def __init__(self, config: MtpConfig, upload: Upload, target: DeviceTarget, activations: Activations) -> None:
        prefix, layer, nextn, device = config.prefix, config.layer, config.nextn, target.device
        assert isinstance(layer.mixer, kinds.Attention), "an MTP block must have an attention mixer"
        self.device, self.config, self.target, self.spec = device, config, target, layer.mixer
        self.capabilities, self.width = capabilities(config, on_device=True), config.embedding_length
        activations = activations.drafter
        self.heads = HeadShape(self.spec.head_dim, self.spec.heads, self.spec.kv_heads, self.spec.rotary)
        self.eh_proj = Projection(device, [upload.matrix(prefix + "nextn.eh_proj.weight")], activations.inputs)
        self.enorm = upload.vector(prefix + "nextn.enorm.weight")
        self.hnorm = upload.vector(prefix + "nextn.hnorm.weight")
        self.attn_norm = upload.vector(prefix + "attn_norm.weight")
        self.mixer = AttentionWeights(device, upload, prefix, activations, self.spec)
        self.ffn_norm = upload.vector(prefix + layer.ffn_norm)
        self.ffn = FEED_FORWARDS[type(layer.ffn)](device, upload, prefix, layer.ffn, activations)
        self.frequencies = frequencies(self.spec, device)
        self.norm: Tensor | None = upload.vector(prefix + kinds.NORM) if nextn.own_norm else None
        self.embedding: Embedding | None = None
        if nextn.own_embedding:
            self.embedding = Embedding(upload, config.embedding_length, prefix + kinds.EMBEDDING)
        self.head: Matrix | None = upload.matrix(prefix + kinds.HEAD) if nextn.own_head else None

    def projections(self) -> tuple[list[AnyProjection], list[AnyProjection]]:
        return [self.mixer.inputs, self.ffn.inputs], [self.eh_proj, self.mixer.out, self.ffn.out]

    def split_order(self, context: int, kv: CachePair) -> SplitOrder:
        """The order of sums in the attention of the pair that drafts."""
        card = self.device.card
        return SplitOrder.of(self.heads, context + BLOCK, card.multiprocessors, card.shared_bytes, trees=False, kv=kv)

    def scratch(self, context: int, kv: CachePair) -> Sequence[Sequence[TensorSpec]]:
        return Splits.pieces(self.split_order(context, kv.past), self.heads), self.ffn.pass_buffers

    def drafter(self, sequence: TargetSequence, context: int, arena: Arena, own: Arena, kv: CachePair = F16) -> Mtp:
        return Mtp(self, sequence, context, arena, own, kv.past)

    def chunk_projections(self) -> Sequence[Projection]:
        return [self.eh_proj, self.mixer.inputs]

    def chunk_buffers(self, rows: int) -> Sequence[Sequence[TensorSpec]]:
        """The joined pairs, the hidden states before them (the first one comes from an earlier chunk), and keys and
        values."""
        pairs, hidden = ((rows, self.width), torch.float32), ((rows + 1, self.width), torch.float16)
        return ((pairs, hidden, ((rows, 2 * self.heads.kv_heads * self.heads.head_dim), torch.float32)),)


class Mtp(ChainDrafter):
    """A head over one sequence of `context` positions."""

    def __init__(
        self, draft: DeviceMtp, sequence: TargetSequence, context: int, arena: Arena, own: Arena, kv: CachePair
    ) -> None:
        target, heads, positions, on = draft.target, draft.heads, context + BLOCK, draft.device.torch_device
        self.kv = KVCache(1, heads.kv_heads, positions, heads.head_dim, on, kv)
        super().__init__(sequence, draft.width, positions, [Layer.of(self.kv, 0)])
        self.draft, self.nbytes = draft, self.kv.nbytes + self.hidden.nbytes
        self.table = cache_table([self.kv])
        self.buffers = PassBuffers(draft.width, *draft.projections(), own, arena)
        self.splits = Splits(draft.split_order(context, kv), heads, self.buffers.inside)
        counts = torch.tensor([1, PASS_ROWS], dtype=torch.int32, device=on)
        self.all_rows = At(counts, 1)
        one_row, eps = At(counts, 0), draft.config.rms_eps
        self.scope = Pass(self.state, self.buffers, 1, 0, one_row, eps)  # of the pair that drafts
        self.embedding: Embedding = draft.embedding or target.embedding
        self.output_norm = target.output_norm
        self.norm: Tensor = target.output_norm if draft.norm is None else draft.norm

    # ---- Launches ------------------------------------------------------------------------------------------------

    def update_launches(self, rows: int, row0: int = 0) -> Iterator[Launch]:
        """Add the pending pairs row0..row0 + rows to the cache."""
        return self._enter(rows, row0, 0)

    def _enter(self, rows: int, first: int, depth: int) -> Iterator[Launch]:
        """Keys and values of a pass's pairs, and the queries of the pair that drafts."""
        draft, buffers, eps = self.draft, self.buffers, self.draft.config.rms_eps
        eh_proj, mixer, heads, place = draft.eh_proj, draft.mixer, draft.heads, [first, depth]
        # After depth 0 the hidden state is the head's own, in the first row of the residual stream.
        hidden, norm = (buffers.h, self.norm) if depth else (self.hidden, self.output_norm)
        slots = 1 if depth else len(self.hidden)
        yield Launch(
            "mtp_join.cu", "mtp_join", {"FORMAT": self.embedding.type, "WIDTH": draft.width, **eh_proj.forms},
            rows, WARP * join_warps(draft.width),
            [self.state.pointer, *place, self.embedding.blocks, self.tokens, hidden, slots, draft.enorm, norm,
             draft.hnorm, np.float32(eps), *eh_proj.act_args(buffers.acts)],
        )  # fmt: skip
        yield from eh_proj.launches(buffers.acts, buffers.narrow, rows)
        scope = replace(self.scope, rows=rows, count=self.all_rows)
        added = Added(eh_proj.split_k, buffers.narrow, fresh=True)
        yield norm_launch(scope, draft.attn_norm, mixer.inputs, added=added)
        yield from mixer.inputs.launches(buffers.acts, buffers.wide, rows)
        yield Launch(
            "mtp.cu", "mtp_prepare", self._defines, (ceil_div(heads.heads + 2 * heads.kv_heads, PREPARE_WARPS), rows),
            WARP * PREPARE_WARPS,
            [self.state.pointer, *place, buffers.wide, rows, heads.kv_heads, mixer.q_norm, mixer.k_norm,
             draft.frequencies, np.float32(draft.spec.eps), np.float32(heads.query_scale), self.splits.q,
             *self.kv.layer(0)],
        )  # fmt: skip

    def _draft(self, head: Projection, rows: int, depth: int) -> Iterator[Launch]:
        """From a pass's pairs to the activations of `head` for the pair that drafts."""
        draft, buffers, splits, split = self.draft, self.buffers, self.splits, self._split
        mixer, heads = draft.mixer, draft.heads
        yield from self._enter(rows, -1, depth)
        yield Launch(
            "mtp.cu", "mtp_split", self._defines, split.grid, split.block,
            [self.state.pointer, depth + 1, FIRST_PAIR, 0, rows, splits.q, *self.kv.layer(0), splits.out,
             splits.stats],
            split.shared,
        )  # fmt: skip
        yield Launch(
            "mtp.cu", "mtp_combine", self._defines, ceil_div(heads.heads * heads.head_dim, GROUP), COMBINE_THREADS,
            [splits.out, splits.stats, splits.order.parts, buffers.wide, rows, heads.kv_heads,
             *mixer.out.act_args(buffers.acts)],
        )  # fmt: skip
        yield from mixer.out.launches(buffers.acts, buffers.narrow, 1)
        mixed, fed = (Added(one.split_k, buffers.narrow) for one in (mixer.out, draft.ffn.out))
        normed = draft.ffn.normed(buffers)
        yield norm_launch(self.scope, draft.ffn_norm, draft.ffn.inputs, added=mixed, normed=normed)
        yield from draft.ffn.launches(self.scope)
        yield norm_launch(self.scope, self.norm, head, added=fed)

    @property
    def _split(self) -> SplitLaunch:
        limit = self.draft.device.card.shared_bytes
        return SplitLaunch.of(self.draft.heads, self.splits.order, 1, limit)

    @property
    def _defines(self) -> dict[str, object]:
        gates = {} if self.draft.spec.gate == "sigmoid" else {"UNGATED": 1}
        split_k = self.draft.mixer.inputs.split_k
        return {**self._split.defines, "SPLIT_K": split_k, **gates, **self.kv.defines}

    def token_launches(self, head: Head, depth: int) -> Iterator[Launch]:
        own = head if self.draft.head is None else head.of(self.draft.head)
        yield from self._draft(own.full, 1 if depth else STEP_ROWS, depth)
        yield from own.candidate_launches(self.buffers.acts, 1, position=depth)

    def chunk(self, chunk: Chunk) -> MtpChunk:
        return MtpChunk(self, chunk)


class MtpChunk(ChunkDrafter):
    """A chunk of a prompt as pairs: each token with the hidden state of the previous row."""

    def __init__(self, drafter: Mtp, chunk: Chunk) -> None:
        draft, ops, products = drafter.draft, chunk.ops, chunk.products
        self._drafter, self._chunk = drafter, chunk
        self._pairs, self._hidden, self._context = chunk.arena.carve(*draft.chunk_buffers(chunk.rows)[0])
        width, eps, count, later = draft.width, draft.config.rms_eps, chunk.count, self._hidden[1:]
        self._embed = ops.add(drafter.embedding.launch(self._pairs, chunk.tokens, count, chunk.rows))
        self._token_norm = chunk_norm(ops, count, self._pairs, draft.enorm, eps, chunk.x)
        self._hidden_norms = [
            chunk_norm(ops, count, chunk.h, drafter.output_norm, eps, later),
            chunk_norm(ops, count, later, draft.hnorm, eps, later),
        ]
        self._norm = chunk_norm(ops, count, self._pairs, draft.attn_norm, eps, chunk.x)
        (joined,) = draft.eh_proj.matrices
        self._halves = [products.parts(joined, range(at, at + width)) for at in (0, width)]
        _, *key_value = draft.mixer.inputs.matrices
        self._key_value = [products.parts(matrix) for matrix in key_value]
        heads = draft.heads
        self._store = ops.add(
            Launch(
                "draft.cu", "draft_update", {**drafter._split.defines, "SPLIT_K": 1, **drafter.kv.defines},
                (ceil_div(2 * heads.kv_heads, PREPARE_WARPS), chunk.rows), WARP * PREPARE_WARPS,
                [drafter.state.pointer, 0, self._context, chunk.rows, 1, heads.kv_heads, draft.mixer.k_norm,
                 draft.frequencies, np.float32(draft.spec.eps), At(drafter.table, 0)],
            )
        )  # fmt: skip

    def update_cache(self, n: int) -> None:
        drafter, chunk = self._drafter, self._chunk
        eps, last = drafter.draft.config.rms_eps, (drafter.length - n - 1) % len(drafter.hidden)
        self._embed()
        self._token_norm()
        chunk.products.multiply(chunk.x[:n], self._halves[0], self._pairs[:n])
        for norm in self._hidden_norms:
            norm()
        before = _normed(drafter.hidden[last], drafter.output_norm, eps)
        self._hidden[0] = _normed(before, drafter.draft.hnorm, eps)
        chunk.products.multiply(self._hidden[:n], self._halves[1], self._pairs[:n], add=True)
        self._norm()
        chunk.products.multiply_all(chunk.x[:n], self._key_value, self._context[:n])
        self._store()
        drafter.store(chunk.h[:n])


def _normed(row: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm of one row."""
    return row * torch.rsqrt(row.square().mean() + eps) * weight
