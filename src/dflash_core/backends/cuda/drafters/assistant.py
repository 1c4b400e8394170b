"""A Gemma assistant on a card: weights, and launches over one sequence, whose keys and values are the target's own.

Every token of a draft stands at the position of the first and sees only the committed ones, so nothing is written. Of
its own it has only the target's hidden state after the newest position. Its head is over all tokens, or over those of a
few cells that centroids choose.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch import Tensor

from dflash_core.arch.assistant import AssistantConfig
from dflash_core.arch.kinds import Attention
from dflash_core.backends.cuda.activations import Activations, Rounding
from dflash_core.backends.cuda.chunk import Chunk
from dflash_core.backends.cuda.drafters.base import ChunkDrafter, Launcher, OnDevice, TargetSequence, overwritten
from dflash_core.backends.cuda.drafters.chains import BLOCK, ChainDrafter, join_warps
from dflash_core.backends.cuda.kv import KVCache
from dflash_core.backends.cuda.launch import WARP, At, Device, Launch, ceil_div
from dflash_core.backends.cuda.layers.attention import COMBINE_THREADS, AttentionLayers, slots_of
from dflash_core.backends.cuda.layers.base import Branch, ChunkRun, Pass, PassBuffers
from dflash_core.backends.cuda.layers.head import CANDIDATE_THREADS, Head
from dflash_core.backends.cuda.layers.norm import Added, norm_launch
from dflash_core.backends.cuda.layers.split_attention import PREPARE_WARPS, SplitLaunch, SplitOrder, Splits
from dflash_core.backends.cuda.products import Arena, TensorSpec
from dflash_core.backends.cuda.projection import AnyProjection, Projection
from dflash_core.backends.cuda.repack import GROUP, ROWS
from dflash_core.backends.cuda.target_model import Block, DeviceTarget, block_launches, residuals_of
from dflash_core.backends.cuda.upload import Upload
from dflash_core.cache_types import F16, CachePair
from dflash_core.drafters.assistant import capabilities
from dflash_core.errors import UnsupportedError

TOKENS = "token_embd.weight"
CELL_WARPS = 8  # warps of a block of kernels/cells.cu
ORDERS = {"F32": "float", "I32": "i32", "I64": "i64"}  # by the type of the list of tokens


class DeviceAssistant(OnDevice):
    """An assistant's weights: layers with queries only, and projections between its width and the target's; and the
    target, whose embedding and norm it uses. `mixers`: of each layer. Its final rows are rounded as those of the
    target's head are."""

    def __init__(self, config: AssistantConfig, upload: Upload, target: DeviceTarget, activations: Activations) -> None:
        device = target.device
        self.device, self.config, self.target = device, config, target
        self.capabilities, self.width = capabilities(config, on_device=True), config.embedding_length
        own, rounding = activations.drafter, activations.head
        self.pre_projection = Projection(device, [upload.matrix("nextn.pre_projection.weight")], own.inputs)
        self.mixers: list[AttentionLayers] = []
        self.blk: list[Block] = []
        for index, layer in enumerate(config.layers):
            assert isinstance(layer.mixer, Attention), "an assistant's layers have attention mixers"
            mixer = AttentionLayers(device, layer.mixer, own)
            self.mixers.append(mixer)
            residuals = residuals_of(device, upload, index, layer, own, None, partial(mixer.load, upload))
            self.blk.append(Block(index, 0, residuals))
        self.output_norm = upload.vector("output_norm.weight")
        self.post_projection = Projection(device, [upload.matrix("nextn.post_projection.weight")], rounding)
        self.head = CellHead(device, upload, config, rounding) if config.cells else AssistantHead(upload)

    def projections(self) -> tuple[list[AnyProjection], list[AnyProjection]]:
        pairs: list[tuple[AnyProjection, AnyProjection]]
        pairs = [mixer.projections(0) for mixer in self.mixers]
        pairs += [(ffn.inputs, ffn.out) for block in self.blk for ffn in block.feed_forwards]
        inputs = [*(one for one, _ in pairs), self.post_projection, *self.head.projections]
        return inputs, [self.pre_projection, *(out for _, out in pairs)]

    def split_orders(self, context: int, kv: CachePair) -> list[SplitOrder]:
        """The order of sums in each layer's attention over the target's cache for `context` positions."""
        card, slots = self.device.card, slots_of(context)
        return [
            SplitOrder.of(
                mixer.heads, slots, card.multiprocessors, card.shared_bytes, trees=False, kv=mixer.stored(kv).past
            )
            for mixer in self.mixers
        ]

    def scratch(self, context: int, kv: CachePair) -> Sequence[Sequence[TensorSpec]]:
        orders = zip(self.split_orders(context, kv), self.mixers, strict=True)
        inside = [Splits.pieces(order, mixer.heads) for order, mixer in orders]
        return [*inside, *(ffn.pass_buffers for block in self.blk for ffn in block.feed_forwards)]

    def drafter(
        self, sequence: TargetSequence, context: int, arena: Arena, own: Arena, kv: CachePair = F16
    ) -> Assistant:
        return Assistant(self, sequence, context, arena, own, kv)


class AssistantHead:
    """Logits of one row, and the candidates of a draft's position among them: by the matrix of all tokens."""

    projections: Sequence[AnyProjection] = ()
    """Products whose results are in the pass's memory."""
    row: Tensor | None = None
    """Where the row is also needed in f32."""

    def __init__(self, upload: Upload) -> None:
        self.matrix = upload.matrix(TOKENS)

    def reader(self, head: Head) -> AnyProjection:
        """What reads the row's activations. `head`: the target's, whose memory of logits may be used."""
        return head.of(self.matrix).full

    def launches(self, head: Head, buffers: PassBuffers, depth: int) -> list[Launch]:
        return head.of(self.matrix).candidate_launches(buffers.acts, 1, position=depth)

    def on_host(self, head: Head) -> Tensor:
        """Logits (1, vocab) of the last launches; -inf for tokens without."""
        return head.on_host(1)


class CellHead(AssistantHead):
    """By centroids: over the tokens of the cells whose centroids suit the row best."""

    row: Tensor

    def __init__(self, device: Device, upload: Upload, config: AssistantConfig, rounding: Rounding) -> None:
        on, self.config = device.torch_device, config
        self.centroids = Projection(device, [upload.matrix("masked_embd_centroids.weight")], rounding)
        self.projections = (self.centroids,)
        self.type, self.rows = upload.raw(TOKENS)
        order, self.order = upload.raw("masked_embd_ordering")
        if order not in ORDERS:
            raise UnsupportedError(f"masked_embd_ordering is {order}, expected one of {', '.join(ORDERS)}")
        self.used = min(config.cells_used, config.cells)
        self.each = config.vocab_size // config.cells
        self.tokens = self.used * self.each
        self._order, blocks = ORDERS[order], ceil_div(self.tokens, ROWS)
        self.ids = torch.zeros(self.tokens, dtype=torch.int32, device=on)
        self.logits = torch.zeros(self.tokens, device=on)
        self.maxima, self.sums = (torch.zeros(blocks, device=on) for _ in range(2))
        self.row = torch.zeros(1, config.embedding_length, device=on)

    def reader(self, head: Head) -> AnyProjection:
        return self.centroids

    def launches(self, head: Head, buffers: PassBuffers, depth: int) -> list[Launch]:
        cells, threads = {"CELLS": self.config.cells, "USED": self.used, "EACH": self.each}, WARP * CELL_WARPS
        return [
            *self.centroids.launches(buffers.acts, buffers.wide, 1),
            Launch(
                "cells.cu", "choose_cells", {**cells, "SPLIT_K": self.centroids.split_k, "ORDER": self._order},
                ceil_div(self.config.cells, CELL_WARPS), threads,
                [buffers.wide, self.centroids.width, self.order, self.ids],
            ),
            Launch(
                "cells.cu", "cell_logits", {**cells, "FORMAT": self.type, "WIDTH": self.config.embedding_length},
                ceil_div(self.tokens, ROWS), threads,
                [head.state.pointer, self.ids, self.rows, self.row, self.logits, self.maxima, self.sums],
            ),
            Launch(
                "candidates.cu", "candidates", {"TARGETS": "i32"}, 1, CANDIDATE_THREADS,
                [head.state.pointer, self.logits, self.maxima, self.sums, self.tokens, self.tokens, depth, self.ids],
            ),
        ]  # fmt: skip

    def on_host(self, head: Head) -> Tensor:
        full = torch.full((1, self.config.vocab_size), -math.inf)
        full[0, self.ids.cpu().long()] = self.logits.cpu()
        return full


class ReadingBranch(Branch):
    """One row of queries, which sees the committed positions in `kv`."""

    inputs: Projection
    out: Projection

    def __init__(self, layers: AttentionLayers, kv: KVCache, place: int, splits: Splits) -> None:
        self.layers, self.kv, self.place, self.splits = layers, kv, place, splits
        self.inputs, self.out = layers.projections(0)

    def chunk(self, chunk: Chunk) -> ChunkRun:
        raise NotImplementedError("no prompt runs through an assistant's layers")

    def launches(self, scope: Pass) -> Iterator[Launch]:
        layers, splits, buffers, state = self.layers, self.splits, scope.buffers, scope.state
        heads, weights = layers.heads, layers.weights[0]
        split = SplitLaunch.of(heads, splits.order, 1, layers.device.card.shared_bytes)
        defines = {**split.defines, **layers.defines, **self.kv.past_defines, "SPLIT_K": self.inputs.split_k}
        cache = self.kv.layer(self.place)
        yield from self.inputs.launches(buffers.acts, buffers.wide, 1)
        yield Launch(
            "mtp.cu", "mtp_prepare", defines, (ceil_div(heads.heads, PREPARE_WARPS), 1), WARP * PREPARE_WARPS,
            [state.pointer, -1, 0, buffers.wide, 1, heads.kv_heads, weights.q_norm, weights.k_norm, layers.frequencies,
             np.float32(layers.spec.eps), layers.query_scale, splits.q, *cache],
        )  # fmt: skip
        # Without its own position, which a window counts too.
        window = max(layers.spec.window - 1, 0)
        yield Launch(
            "mtp.cu", "mtp_split", defines, split.grid, split.block,
            [state.pointer, 0, 0, window, 1, splits.q, *cache, splits.out, splits.stats],
            split.shared,
        )  # fmt: skip
        yield Launch(
            "mtp.cu", "mtp_combine", defines, ceil_div(heads.heads * heads.head_dim, GROUP), COMBINE_THREADS,
            [splits.out, splits.stats, splits.order.parts, buffers.wide, 1, heads.kv_heads,
             *self.out.act_args(buffers.acts)],
        )  # fmt: skip
        yield from self.out.launches(buffers.acts, buffers.narrow, 1)


class Assistant(ChainDrafter):
    """An assistant over one sequence of `context` positions."""

    def __init__(
        self, draft: DeviceAssistant, sequence: TargetSequence, context: int, arena: Arena, own: Arena, kv: CachePair
    ) -> None:
        super().__init__(sequence, draft.config.target_width, context + BLOCK)
        self.draft, self.nbytes = draft, self.hidden.nbytes
        self.embedding, self._reaches = sequence.embedding, sequence.reaches
        self.buffers = PassBuffers(draft.width, *draft.projections(), own, arena)
        self.branches = [
            ReadingBranch(mixer, *sequence.keys(source), Splits(order, mixer.heads, self.buffers.inside))
            for mixer, source, order in zip(
                draft.mixers, draft.config.sources, draft.split_orders(context, kv), strict=True
            )
        ]
        self.one_row = At(torch.ones(1, dtype=torch.int32, device=draft.device.torch_device), 0)

    def update_launches(self, rows: int, row0: int = 0) -> Iterator[Launch]:
        """None: what is committed is in the target's cache, and in the ring."""
        yield from ()

    @contextmanager
    def standing(self, at: int | None, launch: Launcher, **fields: float) -> Iterator[None]:
        """As for other drafters. Raises ContextError if a ring of the target no longer has what a draft there reads."""
        if at is not None and not self._reaches(at, self.length):
            raise overwritten(at)
        with super().standing(at, launch, **fields):
            yield

    def token_launches(self, head: Head, depth: int) -> Iterator[Launch]:
        draft, buffers = self.draft, self.buffers
        pre, post, spec = draft.pre_projection, draft.post_projection, draft.target.spec
        state, slots = self.hidden, len(self.hidden)
        if depth:  # the activations of the token before are still there; its logits are no longer needed
            yield from post.launches(buffers.acts, buffers.wide, 1)
            state, slots = buffers.wide, 1
        width, split_k = draft.config.target_width, post.split_k if depth else 0
        yield Launch(
            "assistant_join.cu", "assistant_join",
            {"FORMAT": self.embedding.type, "WIDTH": width, "SCALE": spec.embedding_scale, "SPLIT_K": split_k,
             **pre.forms},
            1, WARP * join_warps(width),
            [self.state.pointer, depth, self.embedding.blocks, state, slots, draft.target.output_norm,
             np.float32(spec.rms_eps), *pre.act_args(buffers.acts)],
        )  # fmt: skip
        yield from pre.launches(buffers.acts, buffers.narrow, 1)
        before = Added(pre.split_k, buffers.narrow, fresh=True)
        scope = Pass(self.state, buffers, 1, 0, self.one_row, draft.config.rms_eps)
        for block, branch in zip(draft.blk, self.branches, strict=True):
            before = yield from block_launches(block, branch, scope, before)
        readers = sorted((draft.head.reader(head), post), key=lambda one: not one.plan.needs_q8)
        yield norm_launch(scope, draft.output_norm, readers[0], added=before, both=True, normed=draft.head.row)
        yield from draft.head.launches(head, buffers, depth)

    def logits_row(self, head: Head) -> torch.Tensor:
        return self.draft.head.on_host(head)

    def chunk(self, chunk: Chunk) -> AssistantChunk:
        return AssistantChunk(self, chunk)


class AssistantChunk(ChunkDrafter):
    """A chunk of a prompt: the target's last rows."""

    def __init__(self, drafter: Assistant, chunk: Chunk) -> None:
        self._drafter, self._chunk = drafter, chunk

    def update_cache(self, n: int) -> None:
        self._drafter.store(self._chunk.h[:n])
