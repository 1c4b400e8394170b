"""An MTP head on a card: its cache of pairs, its pending pairs and its launches, over one sequence.

Pair s is (token s, hidden state after token s - 1), in slot s of the head's own cache. Committed pairs are *pending*
until they are in the cache. The newest token forms the pair that drafts, and every drafted token forms the next pair.
Cache entries of drafted pairs are overwritten later: committed pairs have the target's own hidden states.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from dflash_core.backends.cuda.activations import Activations
from dflash_core.backends.cuda.captured import CapturedLayers
from dflash_core.backends.cuda.chunk import Chunk
from dflash_core.backends.cuda.device_state import DeviceState
from dflash_core.backends.cuda.drafters.base import DraftMemory, TargetSequence
from dflash_core.backends.cuda.drafters.caches import DraftCaches, cache_table
from dflash_core.backends.cuda.drafters.chains import BLOCK, ChainDrafter, HiddenRing, join_warps
from dflash_core.backends.cuda.drafters.mtp_weights import DeviceMtp
from dflash_core.backends.cuda.kv import KVCache
from dflash_core.backends.cuda.launch import WARP, At, Launch, ceil_div
from dflash_core.backends.cuda.layers.attention import COMBINE_THREADS
from dflash_core.backends.cuda.layers.base import Pass, PassBuffers, Upload
from dflash_core.backends.cuda.layers.embedding import Embedding
from dflash_core.backends.cuda.layers.head import Head
from dflash_core.backends.cuda.layers.norm import Added, chunk_norm, norm_launch
from dflash_core.backends.cuda.layers.split_attention import PREPARE_WARPS, SplitLaunch, SplitOrder
from dflash_core.backends.cuda.layers.splits import Splits
from dflash_core.backends.cuda.products import Arena, TensorSpec
from dflash_core.backends.cuda.projection import AnyProjection, Projection
from dflash_core.backends.cuda.repack import GROUP
from dflash_core.backends.cuda.rings import Layer
from dflash_core.backends.cuda.state import PASS_ROWS
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.cache_types import F16, CachePair
from dflash_core.config import MtpConfig
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.drafters.mtp import NEEDS_TOKENS, capabilities

FIRST_PAIR = 1  # there is no pair for token 0
STEP_ROWS = 1 + BLOCK  # of a step's first pass: the pair that drafts, and those of the previous step's longest path


class MtpMemory:
    """The head's memory for `context` positions, without weights. `hidden`, `tokens`: see `HiddenRing`."""

    def __init__(self, draft: DeviceMtp, context: int, arena: Arena, own: Arena, kv: CachePair) -> None:
        device, width, positions = draft.device.torch_device, draft.config.embedding_length, context + BLOCK
        heads = draft.heads
        self.kv = KVCache(1, heads.kv_heads, positions, heads.head_dim, device, kv)
        ring = HiddenRing(width, positions, device)
        self.hidden, self.tokens = ring.hidden, ring.tokens
        self.caches = DraftCaches([Layer.of(self.kv, 0), ring.layer], BLOCK, positions)
        self.table = cache_table([self.kv])
        self.buffers = PassBuffers(width, *draft.projections(), own, arena)
        self.splits = Splits(split_order(draft, context, kv), heads, self.buffers.inside)
        self.counts = torch.tensor([1, PASS_ROWS], dtype=torch.int32, device=device)

    @property
    def nbytes(self) -> Mapping[str, int]:
        return {"drafter KV": self.kv.nbytes + self.hidden.nbytes}


def split_order(draft: DeviceMtp, context: int, kv: CachePair) -> SplitOrder:
    """The order of sums in the attention of the pair that drafts."""
    card = draft.device.card
    return SplitOrder.of(draft.heads, context + BLOCK, card.multiprocessors, card.shared_bytes, trees=False, kv=kv)


class Mtp(ChainDrafter):
    """Implements `drafters.base.DeviceDrafter`. `captured`: the target's last layer."""

    needs = NEEDS_TOKENS

    def __init__(
        self, draft: DeviceMtp, target: DeviceTarget, memory: MtpMemory, captured: CapturedLayers, state: DeviceState
    ) -> None:
        self.draft, self.memory, self.captured, self.state = draft, memory, captured, state
        self.caches = memory.caches
        self.embedding: Embedding = draft.embedding or target.embedding
        self.output_norm = target.output_norm
        self.norm: Tensor = target.output_norm if draft.norm is None else draft.norm
        self.one_row, self.all_rows = At(memory.counts, 0), At(memory.counts, 1)

    @property
    def ring(self) -> MtpMemory:
        return self.memory

    # ---- Launches ------------------------------------------------------------------------------------------------

    def update_launches(self, rows: int, row0: int = 0) -> list[Launch]:
        """Add the pending pairs row0..row0 + rows to the cache."""
        return list(self._enter(rows, row0, 0))

    def _enter(self, rows: int, first: int, depth: int) -> Iterator[Launch]:
        """Keys and values of a pass's pairs, and the queries of the pair that drafts."""
        draft, memory, buffers, eps = self.draft, self.memory, self.memory.buffers, self.draft.config.rms_eps
        eh_proj, mixer, heads, place = draft.eh_proj, draft.mixer, draft.heads, [np.int32(first), np.int32(depth)]
        # After depth 0 the hidden state is the head's own, in the first row of the residual stream.
        hidden, norm = (buffers.h, self.norm) if depth else (memory.hidden, self.output_norm)
        slots = 1 if depth else len(memory.hidden)
        width = draft.config.embedding_length
        yield Launch(
            "mtp_join.cu", "mtp_join", {"FORMAT": self.embedding.type, "WIDTH": width, **eh_proj.forms},
            rows, WARP * join_warps(width),
            [self.state.pointer, *place, self.embedding.blocks, memory.tokens, hidden, np.int32(slots), draft.enorm,
             norm, draft.hnorm, np.float32(eps), *eh_proj.act_args(buffers.acts)],
        )  # fmt: skip
        yield from eh_proj.launches(buffers.acts, buffers.narrow, rows)
        yield norm_launch(
            buffers.h, draft.attn_norm, eps, rows, buffers.acts, mixer.inputs, self.all_rows, 0,
            added=Added(eh_proj.split_k, buffers.narrow, fresh=True),
        )  # fmt: skip
        yield from mixer.inputs.launches(buffers.acts, buffers.wide, rows)
        yield Launch(
            "mtp.cu", "mtp_prepare", self._defines, (ceil_div(heads.heads + 2 * heads.kv_heads, PREPARE_WARPS), rows),
            WARP * PREPARE_WARPS,
            [self.state.pointer, *place, buffers.wide, np.int32(rows), np.int32(heads.kv_heads), mixer.q_norm,
             mixer.k_norm, draft.frequencies, np.float32(draft.spec.eps), np.float32(heads.query_scale),
             memory.splits.q, *memory.kv.layer(0)],
        )  # fmt: skip

    def _draft(self, head: Projection, rows: int, depth: int) -> Iterator[Launch]:
        """From a pass's pairs to the activations of `head` for the pair that drafts."""
        draft, memory, buffers = self.draft, self.memory, self.memory.buffers
        mixer, heads, splits, count = draft.mixer, draft.heads, memory.splits, np.int32(rows)
        yield from self._enter(rows, -1, depth)
        yield Launch(
            "mtp.cu", "mtp_split", self._defines, self._split.grid, self._split.block,
            [self.state.pointer, np.int32(depth + 1), np.int32(FIRST_PAIR), np.int32(0), count, splits.q,
             *memory.kv.layer(0), splits.out, splits.stats],
            self._split.shared,
        )  # fmt: skip
        yield Launch(
            "mtp.cu", "mtp_combine", self._defines, ceil_div(heads.heads * heads.head_dim, GROUP), COMBINE_THREADS,
            [splits.out, splits.stats, np.int32(splits.order.parts), buffers.wide, count, np.int32(heads.kv_heads),
             *mixer.out.act_args(buffers.acts)],
        )  # fmt: skip
        yield from mixer.out.launches(buffers.acts, buffers.narrow, 1)
        normed = draft.ffn.normed(buffers)
        yield self._norm(draft.ffn_norm, draft.ffn.inputs, mixer.out, normed)
        yield from draft.ffn.launches(Pass(self.state, buffers, 1, 0, self.one_row))
        yield self._norm(self.norm, head, draft.ffn.out)

    def _norm(
        self, weight: Tensor, reader: AnyProjection, added: AnyProjection, normed: Tensor | None = None
    ) -> Launch:
        buffers, eps = self.memory.buffers, self.draft.config.rms_eps
        return norm_launch(
            buffers.h, weight, eps, 1, buffers.acts, reader, self.one_row, 0,
            added=Added(added.split_k, buffers.narrow), normed=normed,
        )  # fmt: skip

    @property
    def _split(self) -> SplitLaunch:
        limit = self.draft.device.card.shared_bytes
        return SplitLaunch.of(self.draft.heads, self.memory.splits.order, 1, limit)

    @property
    def _defines(self) -> dict[str, object]:
        gates = {} if self.draft.spec.gate == "sigmoid" else {"UNGATED": 1}
        split_k = self.draft.mixer.inputs.split_k
        return {**self._split.defines, "SPLIT_K": split_k, **gates, **self.memory.kv.defines}

    def token_launches(self, head: Head, depth: int) -> list[Launch]:
        own = head if self.draft.head is None else head.of(self.draft.head)
        forward = self._draft(own.full, 1 if depth else STEP_ROWS, depth)
        return [*forward, *own.candidate_launches(self.memory.buffers.acts, 1, position=depth)]

    # ---- Driven from the host ------------------------------------------------------------------------------------

    def follow(self, token: int, row: Tensor) -> None:
        """Commit one position: its token, and the target's residual stream (hidden,) there."""
        self.memory.tokens[int(self.state.host["length"]) % len(self.memory.tokens)] = token
        self.state.host["length"] += 1
        self.keep(row[None].to(self.memory.hidden.device))

    # ---- Prompts -------------------------------------------------------------------------------------------------

    def chunk(self, chunk: Chunk) -> MtpChunk:
        return MtpChunk(self, chunk)


class MtpOnDevice:
    """Implements `drafters.base.OnDevice`: a head's weights, and the target whose embedding and norm it shares."""

    def __init__(self, weights: DeviceMtp, target: DeviceTarget) -> None:
        self.weights, self.target = weights, target

    @property
    def capabilities(self) -> Capabilities:
        return capabilities(self.weights.config, on_device=True)

    def pass_buffers(self, context: int, kv: CachePair = F16) -> Sequence[TensorSpec]:
        partials = PassBuffers.partials(*self.weights.projections())
        splits = Splits.pieces(split_order(self.weights, context, kv), self.weights.heads)
        return [*partials, *max(splits, self.weights.ffn.pass_buffers, key=Arena.need)]

    def own_buffers(self) -> Sequence[TensorSpec]:
        draft = self.weights
        return PassBuffers.lasting(draft.config.embedding_length, *draft.projections())

    def memory(self, context: int, arena: Arena, own: Arena, kv: CachePair = F16) -> MtpMemory:
        return MtpMemory(self.weights, context, arena, own, kv)

    def drafter(self, memory: DraftMemory, sequence: TargetSequence) -> Mtp:
        assert isinstance(memory, MtpMemory), "this memory belongs to a different kind of drafter"
        return Mtp(self.weights, self.target, memory, sequence.captured, sequence.state)

    def projections(self) -> Sequence[AnyProjection]:
        inputs, outputs = self.weights.projections()
        return [*inputs, *outputs]

    def chunk_projections(self) -> Sequence[Projection]:
        return [self.weights.eh_proj, self.weights.mixer.inputs]

    def chunk_buffers(self, rows: int) -> Sequence[Sequence[TensorSpec]]:
        return chunk_buffers(self.weights, rows)

    def chunk_lasting(self, rows: int) -> Sequence[TensorSpec]:
        return ()


def on_device(config: MtpConfig, upload: Upload, target: DeviceTarget, activations: Activations) -> MtpOnDevice:
    """See `backends.cuda.drafters.kinds`."""
    return MtpOnDevice(DeviceMtp(target.device, upload, config, activations), target)


def chunk_buffers(draft: DeviceMtp, rows: int) -> Sequence[Sequence[TensorSpec]]:
    """Memory of a chunk of `rows` rows: the joined pairs, the hidden states before them (the first one comes from
    an earlier chunk), and keys and values."""
    width, heads = draft.config.embedding_length, draft.heads
    pairs = ((rows, width), torch.float32)
    return ((pairs, ((rows + 1, width), torch.float16), ((rows, 2 * heads.kv_heads * heads.head_dim), torch.float32)),)


class MtpChunk:
    """A chunk of a prompt as pairs: each token with the hidden state of the previous row."""

    def __init__(self, drafter: Mtp, chunk: Chunk) -> None:
        draft, memory, ops, products = drafter.draft, drafter.memory, chunk.ops, chunk.products
        self._drafter, self._chunk = drafter, chunk
        self._pairs, self._hidden, self._context = chunk.arena.carve(*chunk_buffers(draft, chunk.rows)[0])
        width, eps, count, later = draft.config.embedding_length, draft.config.rms_eps, chunk.count, self._hidden[1:]
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
                "draft.cu", "draft_update", {**drafter._split.defines, "SPLIT_K": 1, **memory.kv.defines},
                (ceil_div(2 * heads.kv_heads, PREPARE_WARPS), chunk.rows), WARP * PREPARE_WARPS,
                [drafter.state.pointer, np.int32(0), self._context, np.int32(chunk.rows), np.int32(1),
                 np.int32(heads.kv_heads), draft.mixer.k_norm, draft.frequencies,
                 np.float32(draft.spec.eps),
                 At(memory.table, 0)],
            )
        )  # fmt: skip

    def capture(self, layer: int, n: int) -> None:
        """Does nothing: `update_cache` reads the last layer's output in chunk.h."""

    def update_cache(self, n: int) -> None:
        """Add the rows' pairs to the cache; the rows are already committed."""
        drafter, chunk, state = self._drafter, self._chunk, self._drafter.state
        begin = int(state.host["length"]) - n
        state.push()
        self._embed()
        self._token_norm()
        chunk.products.multiply(chunk.x[:n], self._halves[0], self._pairs[:n])
        for norm in self._hidden_norms:
            norm()
        slots = len(drafter.memory.hidden)
        before = _normed(drafter.memory.hidden[(begin - 1) % slots], drafter.output_norm, drafter.draft.config.rms_eps)
        self._hidden[0] = _normed(before, drafter.draft.hnorm, drafter.draft.config.rms_eps)
        chunk.products.multiply(self._hidden[:n], self._halves[1], self._pairs[:n], add=True)
        self._norm()
        chunk.products.multiply_all(chunk.x[:n], self._key_value, self._context[:n])
        self._store()
        drafter.keep(chunk.h[:n])
        state.host["draft_length"] = state.host["length"]


def _normed(row: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm of one row."""
    return row * torch.rsqrt(row.square().mean() + eps) * weight
