"""DFlash on a card: the drafter's launches over one sequence.

Captured layers of committed positions are *pending* until they are keys and values in the drafter's own cache. Then one
pass over a block [root, mask, ...] after that context makes the drafts.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from dflash_core.backends.base import Logits
from dflash_core.backends.cuda.chunk import Chunk
from dflash_core.backends.cuda.drafters.base import (
    PENDING_ROWS,
    DeviceDrafter,
    DraftCaches,
    Launcher,
    TargetSequence,
    cache_table,
    draft_slots,
)
from dflash_core.backends.cuda.drafters.dflash_weights import (
    Context,
    ConvolutionRows,
    DeviceConvolution,
    DeviceDraft,
    DFlashChunk,
    DraftLayer,
)
from dflash_core.backends.cuda.kv import KVCache, Layer
from dflash_core.backends.cuda.launch import NO_INPUTS, WARP, At, Inputs, Launch, ceil_div
from dflash_core.backends.cuda.layers.attention import COMBINE_THREADS
from dflash_core.backends.cuda.layers.base import Pass, PassBuffers
from dflash_core.backends.cuda.layers.head import Head
from dflash_core.backends.cuda.layers.norm import Added, norm_launch
from dflash_core.backends.cuda.layers.split_attention import PREPARE_WARPS, SplitLaunch, SplitOrder, Splits
from dflash_core.backends.cuda.products import Arena, TensorSpec
from dflash_core.backends.cuda.projection import Projection
from dflash_core.backends.cuda.repack import GROUP, groups_of
from dflash_core.backends.cuda.state import PASS_ROWS
from dflash_core.cache_types import F16, CachePair
from dflash_core.drafters.draw_noise import noise_share
from dflash_core.knobs import Knobs
from dflash_core.tree import Candidates

COPY_THREADS = 256


class DFlashOnDevice(DeviceDraft):
    """A drafter's weights, and the memory that they need in a sequence."""

    def split_order(self, context: int, kv: CachePair) -> SplitOrder:
        """The order of sums in the block's attention, in a layer with keys and values of the types `kv`."""
        card, slots = self.device.card, context + self.config.block_size
        return SplitOrder.of(self.heads, slots, card.multiprocessors, card.shared_bytes, trees=False, kv=kv)

    def scratch(self, context: int, kv: CachePair) -> Sequence[Sequence[TensorSpec]]:
        return [Splits.pieces(self.split_order(context, kind), self.heads) for kind in (kv.past, F16)]

    def rows(self) -> Sequence[TensorSpec]:
        """Pending features, times HEADROOM; the context's rows before the norm of each layer, if layers norm them; what
        convolutions need for a block, if there are any."""
        fused = [] if self.aux_norm is None else [((PASS_ROWS, self.width), torch.float32)]
        conv = self.config.heads.conv
        convolved = ConvolutionRows.pieces(conv, self.config.block_size, self.width) if conv else ()
        return [((PENDING_ROWS, self.fc.columns), torch.float16), *fused, *convolved]

    def own_buffers(self) -> Sequence[TensorSpec]:
        return [*self.rows(), *super().own_buffers()]

    def drafter(self, sequence: TargetSequence, context: int, arena: Arena, own: Arena, kv: CachePair = F16) -> DFlash:
        return DFlash(self, sequence, context, arena, own, kv.past)


class DFlash(DeviceDrafter):
    """A drafter over one sequence of `context` positions. `captured`: the target's layers that it reads. `kv`: the
    types of keys and values in layers that see the whole context; layers with a window store f16."""

    def __init__(
        self, draft: DFlashOnDevice, sequence: TargetSequence, context: int, arena: Arena, own: Arena, kv: CachePair
    ) -> None:
        config, heads, on = draft.config, draft.heads, draft.device.torch_device
        self.draft, self.captured, self.state = draft, sequence.captured, sequence.state
        self.embedding = draft.embedding or sequence.embedding
        self.rows, self.depths = config.block_size, config.depths
        self.block = 1 + config.depths  # at least `rows`
        positions = context + self.block  # the block's own rows come after the context
        self.kv = [
            KVCache(
                1, heads.kv_heads, draft_slots(layer.window, positions), heads.head_dim, on,
                kv.windowed if layer.window else kv,
            )
            for layer in draft.layers
        ]  # fmt: skip
        self.nbytes = sum(cache.nbytes for cache in self.kv)
        layers = [Layer.of(cache, layer.window) for cache, layer in zip(self.kv, draft.layers, strict=True)]
        self.caches = DraftCaches(layers, self.block, positions)
        self.table = cache_table(self.kv)
        self.pending_rows, *rest = own.carve(*draft.rows())
        self.fused = rest.pop(0) if draft.aux_norm is not None else None
        self.convolved = ConvolutionRows(*rest) if rest else None
        self.buffers = PassBuffers(draft.width, *draft.projections(), own.after(*draft.rows()), arena)
        inside = self.buffers.inside
        self.splits = {kind: Splits(draft.split_order(context, kind), heads, inside) for kind in (kv, F16)}
        vocab = config.heads.draft_vocab or config.vocab_size or 0
        self.scored = draft.pairs.table(self.rows, draft.width, vocab, on) if draft.pairs else None
        counts = torch.tensor([self.rows, PASS_ROWS], dtype=torch.int32, device=on)
        self.all_rows = At(counts, 1)  # live rows, as kernels read them
        self.scope = Pass(self.state, self.buffers, self.rows, 0, At(counts, 0), config.rms_eps)  # of the block

    # ---- Launches ------------------------------------------------------------------------------------------------

    def update_launches(self, rows: int, row0: int = 0) -> Iterator[Launch]:
        """Write rows row0..row0 + rows of the pending features as keys and values of every layer."""
        draft, buffers, fused, fc = self.draft, self.buffers, self.fused, self.draft.fc
        yield Launch(
            "draft.cu", "draft_gather", self._defines(fc, 0), (groups_of(fc.columns), rows), WARP,
            [self.state.pointer, row0, self.pending_rows, fc.columns, *fc.act_args(buffers.acts)],
        )  # fmt: skip
        yield from fc.launches(buffers.acts, buffers.narrow, rows)
        scope = replace(self.scope, rows=rows, count=self.all_rows)
        yield norm_launch(
            scope, draft.enc_output_norm, draft.contexts[0].projection,
            added=Added(fc.split_k, buffers.narrow, fresh=True), both=len(draft.contexts) > 1, normed=fused,
        )  # fmt: skip
        for part in draft.contexts:
            if fused is not None:
                yield norm_launch(scope, draft.layers[part.first].attn_norm, part.projection, h=fused)
            yield from part.projection.launches(buffers.acts, buffers.wide, rows)
            yield from self._store(part, buffers.wide, rows, row0, split_k=part.projection.split_k)

    def _store(self, part: Context, projected: Tensor, rows: int, row0: int, split_k: int) -> Iterator[Launch]:
        """Append rows of a context's projection, f32 (split_k, rows, width), to the cache as keys and values. Layers
        with equal cache types share a launch."""
        draft, heads = self.draft, self.draft.heads
        layers = range(part.first, part.first + part.count)
        for _, group in itertools.groupby(layers, key=lambda index: self.kv[index].kv):
            first, *others = group
            count, width = 1 + len(others), 2 * heads.kv_heads * heads.head_dim
            some = {"CONTEXT_LAYERS": part.count} if count < part.count else {}
            yield Launch(
                "draft.cu", "draft_update",
                {**self._split(first).defines, "SPLIT_K": split_k, **self.kv[first].defines, **some},
                (ceil_div(count * 2 * heads.kv_heads, PREPARE_WARPS), rows), WARP * PREPARE_WARPS,
                [self.state.pointer, row0, At(projected, (first - part.first) * width), rows, count, heads.kv_heads,
                 draft.k_norms[first], draft.frequencies, np.float32(draft.config.rms_eps),
                 At(self.table, first * self.table.shape[1])],
            )  # fmt: skip

    def block_launches(self, head: Projection) -> Iterator[Launch]:
        """From the block [root, mask, ...] to the activations of `head`, one row per position of the block."""
        draft, buffers, pairs = self.draft, self.buffers, self.scored
        mask, scale = draft.config.mask_token, draft.config.heads.embedding_scale
        root, count = self.state.at("root"), self.scope.count
        yield self.embedding.launch(buffers.h, root, count, self.rows, mask_token=mask, scale=scale)
        before: Added | None = None
        for index, layer in enumerate(draft.layers):
            yield from self._input(layer.attn_norm, layer.mixer.inputs, before, layer.attn_conv)
            yield from self._attention(index, layer)
            before = yield from self._output(layer.mixer.out, layer.attn_conv)
            yield from self._input(layer.ffn_norm, layer.ffn.inputs, before, layer.ffn_conv)
            yield from layer.ffn.launches(self.scope)
            before = yield from self._output(layer.ffn.out, layer.ffn_conv)
        if pairs is not None and pairs.projection is not None:
            yield norm_launch(self.scope, draft.output_norm, pairs.projection, added=before)
            yield from pairs.projected_launches(buffers.acts)
            before = None
        yield norm_launch(self.scope, draft.output_norm, head, added=before, normed=pairs.normed if pairs else None)

    def _input(
        self, norm: Tensor, read_by: Projection, added: Added | None, conv: DeviceConvolution | None
    ) -> Iterator[Launch]:
        """A sub-layer's input, as activations for `read_by`."""
        if conv is None or self.convolved is None:
            yield norm_launch(self.scope, norm, read_by, added=added)
            return
        yield norm_launch(self.scope, norm, conv.proj, added=added, normed=self.convolved.normed)
        yield from conv.before(self.buffers, self.convolved, read_by, self.rows)

    def _output(self, out: Projection, conv: DeviceConvolution | None) -> Generator[Launch, None, Added | None]:
        """A sub-layer's output: what the next norm adds to the residual stream, or None if it has been added."""
        if conv is None or self.convolved is None:
            return Added(out.split_k, self.buffers.narrow)
        yield conv.after(self.buffers, self.convolved, out, self.rows)
        return None

    def _attention(self, index: int, layer: DraftLayer) -> Iterator[Launch]:
        draft, config, buffers, kv = self.draft, self.draft.config, self.buffers, self.kv[index]
        mixer, heads, splits = layer.mixer, draft.heads, self.splits[kv.kv]
        split, defines = self._split(index), self._defines(mixer.inputs, index)
        block, cache, tasks = self.rows, kv.layer(0), heads.heads + 2 * heads.kv_heads
        yield from mixer.inputs.launches(buffers.acts, buffers.wide, self.rows)
        yield Launch(
            "draft.cu", "draft_prepare", defines, (ceil_div(tasks, PREPARE_WARPS), block), WARP * PREPARE_WARPS,
            [self.state.pointer, block, buffers.wide, block, heads.kv_heads, mixer.q_norm, mixer.k_norm,
             draft.frequencies, np.float32(config.rms_eps), np.float32(heads.query_scale), splits.q, *cache],
        )  # fmt: skip
        yield Launch(
            "draft.cu", "draft_split", defines, split.grid, split.block,
            [self.state.pointer, block, block, layer.window, layer.causal, splits.q, *cache, splits.out, splits.stats],
            split.shared,
        )  # fmt: skip
        gates = [buffers.wide] if config.heads.gated else []
        yield Launch(
            "draft.cu", "draft_combine", defines, (ceil_div(heads.heads * heads.head_dim, GROUP), self.rows),
            COMBINE_THREADS,
            [block, splits.out, splits.stats, splits.order.parts, block, heads.kv_heads,
             *mixer.out.act_args(buffers.acts), *gates],
        )  # fmt: skip
        yield from mixer.out.launches(buffers.acts, buffers.narrow, self.rows)

    def _split(self, index: int) -> SplitLaunch:
        """The launch of the block's attention in a layer. The kernels that add context to the cache get the same
        defines, although they do not use them all."""
        order = self.splits[self.kv[index].kv].order
        return SplitLaunch.of(self.draft.heads, order, self.rows, self.draft.device.card.shared_bytes)

    def _defines(self, projection: Projection, index: int) -> dict[str, object]:
        gates: dict[str, object] = {"UNGATED": 1, "HEAD_GATES": 1} if self.draft.config.heads.gated else {}
        return {**self._split(index).defines, "SPLIT_K": projection.split_k, **self.kv[index].defines, **gates}

    def logits_launches(self, head: Head) -> list[Launch]:
        """The block's forward pass and its logits."""
        own = self._head(head)
        return [*self.block_launches(own.full), *own.launches(self.buffers.acts, self.rows)]

    def _head(self, head: Head) -> Head:
        """The head of the block's rows: the target's, or one with the drafter's matrix, scale or soft cap."""
        heads, own = self.draft.config.heads, self.draft.head
        if not (own or heads.shaped or head.shaped):
            return head
        return head.of(own or head.matrix, heads.logit_scale, heads.softcap)

    def passes(self, knobs: Knobs) -> int:
        return 1

    def propose_launches(self, head: Head, passes: int) -> list[Launch]:
        """Add what the last step committed to the cache, then turn the block into ranked candidates."""
        return [*self.update_launches(self.block), *self._candidate_launches(head)]

    def _candidate_launches(self, head: Head) -> list[Launch]:
        """The block's forward pass and its ranked candidates, also scored by parent if the drafter has a head for
        that."""
        own, acts, pairs = self._head(head), self.buffers.acts, self.scored
        targets = self.draft.vocabulary.inputs
        forward = self.block_launches(own.full)
        if pairs is None:
            skip = self.rows - self.depths
            return [*forward, *own.candidate_launches(acts, self.rows, skip=skip, inputs=targets)]
        return [*forward, *pairs.launches(self.state.pointer, own, acts, self.depths, targets)]

    @property
    def tree_inputs(self) -> Inputs:
        return self.scored.tree_inputs if self.scored else NO_INPUTS

    def commit_launches(self, width: int) -> list[Launch]:
        """Make the captured layers of an accepted path of up to `width` nodes pending."""
        features, pending, norms = self.captured, self.pending_rows, self.draft.aux_norm
        if norms is not None:
            taps, hidden = norms.shape
            return [
                Launch("features.cu", "keep_normed", {}, (taps, width), COPY_THREADS,
                       [self.state.pointer, features.rows, norms, np.float32(self.draft.config.rms_eps), pending,
                        hidden, len(pending)])
            ]  # fmt: skip
        quads = ceil_div(features.width, 4)
        return [
            Launch("features.cu", "keep_features", {}, (ceil_div(quads, COPY_THREADS), width), COPY_THREADS,
                   [self.state.pointer, features.rows, pending, features.width, len(pending)])
        ]  # fmt: skip

    # ---- Driven from the host ------------------------------------------------------------------------------------

    def logits(self, root: int, window: int, at: int | None, head: Head, launch: Launcher) -> Logits:
        """-inf for tokens outside the drafter's vocabulary."""
        with self._drafting(root, window, at, launch):
            launch(("draft", head.vocab), partial(self.logits_launches, head))
            found = self._head(head).on_host(self.rows)[self.rows - self.depths :]
        logits: Logits = self.draft.vocabulary.spread(found).numpy()
        return logits

    def pairs(self, root: int, knobs: Knobs, at: int | None, head: Head, launch: Launcher) -> Candidates | None:
        if self.scored is None:
            return None
        scoring = {"inv_tree_temperature": 1 / knobs.tree_temperature, "draft_noise": noise_share(knobs)}
        with self._drafting(root, knobs.draft_window, at, launch, seed=knobs.fixed().seed, **scoring):
            launch(("candidates", head.vocab), partial(self._candidate_launches, head))
            return self.scored.candidates(self.depths, knobs.tree_width)

    def _drafting(
        self, root: int, window: int, at: int | None, launch: Launcher, **scoring: float
    ) -> AbstractContextManager[None]:
        scoring = {"inv_tree_temperature": 1.0, "draft_noise": 0.0, **scoring}
        return self.standing(
            at, launch, root=root, draft_window=window, draft_depth=self.depths, by_parent=1, **scoring
        )

    def chunk(self, chunk: Chunk) -> DFlashChunk:
        def store(context: Context, projected: Tensor, rows: int) -> Iterator[Launch]:
            return self._store(context, projected, rows, 0, split_k=1)

        return DFlashChunk(self.draft, self.captured.layers, chunk, store)
