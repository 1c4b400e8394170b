"""The drafter's passes, launch by launch: committed features to context, and a block of masks to logits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from dflash_core.backends.cuda.attention import SplitLaunch
from dflash_core.backends.cuda.buffers import PASS_ROWS, DraftBuffers
from dflash_core.backends.cuda.device_state import DeviceState
from dflash_core.backends.cuda.launch import At, Launch
from dflash_core.backends.cuda.model import Context, DeviceDraft, DeviceTarget
from dflash_core.backends.cuda.projection import Projection
from dflash_core.backends.cuda.repack import GROUP, groups_of
from dflash_core.backends.cuda.target_pass import (
    COMBINE_THREADS,
    EMBED_THREADS,
    PREPARE_WARPS,
    WARP,
    ceil_div,
    norm_launch,
    swiglu_launch,
)


class DraftPass:
    """Launches of a drafter over its own buffers."""

    def __init__(
        self, draft: DeviceDraft, target: DeviceTarget, buffers: DraftBuffers, state: DeviceState, mask_token: int
    ) -> None:
        self.draft, self.target, self.buffers, self.state = draft, target, buffers, state
        self.mask_token = mask_token
        self.block = At(buffers.counts, 0)  # live rows of the block, as kernels read them
        self.all_rows = At(buffers.counts, 1)

    def absorb(self, rows: int, row0: int = 0) -> Iterator[Launch]:
        """Rows row0..row0 + rows of the waiting features as keys and values of every layer."""
        draft, buffers = self.draft, self.buffers
        fc = draft.fc
        yield Launch(
            "draft.cu", "draft_gather", self._defines(fc, rows), (groups_of(fc.columns), rows), WARP,
            [self.state.pointer, np.int32(row0), buffers.waiting, np.int32(fc.columns), *fc.wanted(buffers.acts)],
        )  # fmt: skip
        yield from fc.launches(buffers.acts, buffers.narrow, rows)
        wanted = draft.contexts[0].projection
        yield norm_launch(
            buffers.h, draft.enc_output_norm, draft.config.rms_eps, rows, buffers.acts, wanted, self.all_rows, 0,
            added=(fc, buffers.narrow), fresh=True, both=len(draft.contexts) > 1,
        )  # fmt: skip
        for part in draft.contexts:
            yield from part.projection.launches(buffers.acts, buffers.wide, rows)
            yield self.store(part, buffers.wide, rows, row0, planes=part.projection.slices)

    def store(self, part: Context, projected: Tensor, rows: int, row0: int, planes: int) -> Launch:
        """Rows of a context's projection, f32 (planes, rows, width), to keys and values behind those absorbed."""
        draft, heads, kv = self.draft, self.draft.heads, self.buffers.kv
        return Launch(
            "draft.cu", "draft_absorb", {**self._split(rows).defines, "PLANES": planes},
            (ceil_div(part.count * 2 * heads.kv_heads, PREPARE_WARPS), rows), WARP * PREPARE_WARPS,
            [self.state.pointer, np.int32(row0), projected, np.int32(rows), np.int32(part.count),
             np.int32(heads.kv_heads), draft.k_norms[part.first], draft.frequencies, np.float32(draft.config.rms_eps),
             kv.k[part.first], kv.v[part.first], np.uint64(kv.k[0].numel()), np.int32(kv.slots)],
        )  # fmt: skip

    def launches(self, head: Projection) -> Iterator[Launch]:
        """The block [root, mask, ...] to the activations of `head`, a row per position of the block."""
        draft, buffers = self.draft, self.buffers
        rows, eps = buffers.block, draft.config.rms_eps
        width = self.target.config.embedding_length
        yield Launch(
            "embed.cu", "embed", {"FORMAT": self.target.embedding_type, "WIDTH": width},
            (ceil_div(width, EMBED_THREADS), rows), EMBED_THREADS,
            [buffers.h, self.target.token_embd, self.state.at("root"), np.int32(self.mask_token), self.block,
             np.int32(0)],
        )  # fmt: skip
        before: tuple[Projection, Tensor] | None = None
        for index, (layer, ffn) in enumerate(zip(draft.layers, draft.ffn, strict=True)):
            yield self._norm(draft.attn_norm[index], layer.inputs, before)
            yield from layer.inputs.launches(buffers.acts, buffers.wide, rows)
            yield from self._attention(index)
            yield from layer.attn_output.launches(buffers.acts, buffers.narrow, rows)
            yield self._norm(draft.ffn_norm[index], ffn.gate_up, (layer.attn_output, buffers.narrow))
            yield from ffn.gate_up.launches(buffers.acts, buffers.wide, rows)
            yield swiglu_launch(ffn, buffers.wide, rows, buffers.acts, self.block, 0)
            yield from ffn.down.launches(buffers.acts, buffers.narrow, rows)
            before = ffn.down, buffers.narrow
        yield norm_launch(
            buffers.h, draft.output_norm, eps, rows, buffers.acts, head, self.block, 0, added=before
        )  # fmt: skip

    def _norm(self, weight: Tensor, wanted: Projection, added: tuple[Projection, Tensor] | None) -> Launch:
        buffers, eps = self.buffers, self.draft.config.rms_eps
        return norm_launch(buffers.h, weight, eps, buffers.block, buffers.acts, wanted, self.block, 0, added=added)

    def _attention(self, index: int) -> Iterator[Launch]:
        draft, buffers, config = self.draft, self.buffers, self.draft.config
        layer, heads, kv, splits = draft.layers[index], draft.heads, buffers.kv, buffers.splits
        split = self._split(buffers.block)
        defines = self._defines(layer.inputs, buffers.block)
        block, kv_heads, slots = np.int32(buffers.block), np.int32(heads.kv_heads), np.int32(kv.slots)
        k, v, tasks = kv.k[index], kv.v[index], heads.heads + 2 * heads.kv_heads
        window = config.sliding_window if config.sliding[index] else 0
        yield Launch(
            "draft.cu", "draft_prepare", defines, (ceil_div(tasks, PREPARE_WARPS), buffers.block), WARP * PREPARE_WARPS,
            [self.state.pointer, block, buffers.wide, block, kv_heads, layer.attn_q_norm, layer.attn_k_norm,
             draft.frequencies, np.float32(config.rms_eps), np.float32(heads.query_scale), splits.q, k, v, slots],
        )  # fmt: skip
        yield Launch(
            "draft.cu", "draft_split", defines, split.grid, split.block,
            [self.state.pointer, block, block, np.int32(window), np.int32(config.causal[index]), splits.q, k, v, slots,
             splits.out, splits.stats],
            split.shared,
        )  # fmt: skip
        yield Launch(
            "draft.cu", "draft_combine", defines, (ceil_div(heads.heads * heads.head_dim, GROUP), buffers.block),
            COMBINE_THREADS,
            [block, splits.out, splits.stats, np.int32(splits.order.splits), block, kv_heads,
             *layer.attn_output.wanted(buffers.acts)],
        )  # fmt: skip

    def _split(self, rows: int) -> SplitLaunch:
        limit = self.draft.device.card.shared_bytes
        return SplitLaunch.of(self.draft.heads, self.buffers.splits.order, min(rows, PASS_ROWS), limit)

    def _defines(self, projection: Projection, rows: int) -> dict[str, object]:
        return {**self._split(rows).defines, "PLANES": projection.slices}
