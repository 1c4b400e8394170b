"""One target pass over up to 64 nodes of a tree, launch by launch: the model's forward, read top to bottom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from torch import Tensor

from dflash_core.backends.cuda.attention import SplitLaunch
from dflash_core.backends.cuda.buffers import TargetBuffers
from dflash_core.backends.cuda.device_state import DeviceState
from dflash_core.backends.cuda.gdn import DeltaLaunch
from dflash_core.backends.cuda.launch import NULL, Argument, At, Launch
from dflash_core.backends.cuda.model import Attention, Block, DeviceTarget, FeedForward, GatedDeltaNet
from dflash_core.backends.cuda.projection import Acts, Projection
from dflash_core.backends.cuda.repack import GROUP, groups_of

# Rows of the passes that are compiled: a tree takes the smallest that holds it.
WIDTHS = (1, 8, 16, 24, 32, 40, 48, 64)
WARP = 32
SWIGLU_WARPS = 4
ROW_BLOCKS = 5  # that share a row of a norm, where blocks can form clusters
PREPARE_WARPS = 4  # heads that a block of attn_prepare and draft_prepare writes
EMBED_THREADS = 256
COMBINE_THREADS = 4 * WARP  # of attn_combine and draft_combine: MERGE_WARPS of kernels/attention.cuh


def width_for(rows: int, widths: Sequence[int] = WIDTHS) -> int:
    """The smallest of `widths` that holds `rows`."""
    return next(width for width in widths if width >= rows)


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def norm_launch(
    h: Tensor,
    weight: Tensor,
    eps: float,
    rows: int,
    acts: Acts,
    wanted: Projection,
    count: At,
    node0: int,
    *,
    added: tuple[Projection, Tensor] | None = None,
    fresh: bool = False,
    both: bool = False,
    tap: At | None = None,
    tap_width: int = 0,
) -> Launch:
    """h += the planes of the projection before, then RMSNorm as the activations that `wanted` reads.

    `fresh`: h is the planes alone. `both`: other projections read the activations too. `tap`: where the sum goes as
    well.
    """
    width = h.shape[1]
    defines: dict[str, object] = {"WIDTH": width, "SPLITS": added[0].slices if added else 0}
    if fresh:
        defines["FRESH"] = 1
    forms = (At(acts.q8, 0), At(acts.f16, 0)) if both else wanted.wanted(acts)
    args = [
        h, added[1] if added else NULL, np.int32(rows), weight, np.float32(eps), *forms,
        tap if tap is not None else NULL, np.int32(tap_width), count, np.int32(node0),
    ]  # fmt: skip

    def launch(blocks: int, clustered: Launch | None = None) -> Launch:
        threads = WARP * min(ceil_div(groups_of(width), blocks), 32)
        shape = {**defines, "CLUSTER": blocks}
        return Launch("norm.cu", "rms_norm", shape, rows * blocks, threads, args, per_sm=2, clustered=clustered)

    return launch(1, launch(ROW_BLOCKS))


def swiglu_launch(ffn: FeedForward, planes: Tensor, rows: int, acts: Acts, count: At, node0: int) -> Launch:
    """The activations of ffn_down."""
    defines = {"WIDTH": ffn.width, "SPLITS": ffn.gate_up.slices, "UP_AT": ffn.gate_up.offsets[1]}
    args = [planes, np.int32(rows), np.int32(ffn.gate_up.width), *ffn.down.wanted(acts), count, np.int32(node0)]
    return Launch(
        "swiglu.cu", "swiglu", defines, (ceil_div(groups_of(ffn.width), SWIGLU_WARPS), rows), WARP * SWIGLU_WARPS, args
    )


class TargetPass:
    """The launches of a pass of `rows` rows over nodes node0.. of the tree in `state`."""

    def __init__(
        self, target: DeviceTarget, buffers: TargetBuffers, state: DeviceState, rows: int, node0: int = 0
    ) -> None:
        self.target, self.buffers, self.state, self.rows, self.node0 = target, buffers, state, rows, node0
        self.count = state.at("n")
        self.split = SplitLaunch.of(target.heads, buffers.splits.order, rows, target.device.card.shared_bytes)
        self.delta = DeltaLaunch.of(target.delta, rows, target.device.card.shared_bytes)

    def launches(self, head: Projection) -> Iterator[Launch]:
        """From token ids to the activations of `head`."""
        target, buffers = self.target, self.buffers
        yield self._embed()
        before: tuple[Projection, Tensor] | None = None
        for index, block in enumerate(target.blk):
            yield self._norm(block.attn_norm, block.mixer.inputs, before, tap=index - 1)
            yield from self._mixer(block)
            out = block.mixer.ssm_out if isinstance(block.mixer, GatedDeltaNet) else block.mixer.attn_output
            yield from out.launches(buffers.acts, buffers.narrow, self.rows)
            yield self._norm(block.post_attention_norm, block.ffn.gate_up, (out, buffers.narrow))
            yield from block.ffn.gate_up.launches(buffers.acts, buffers.wide, self.rows)
            yield swiglu_launch(block.ffn, buffers.wide, self.rows, buffers.acts, self.count, self.node0)
            yield from block.ffn.down.launches(buffers.acts, buffers.narrow, self.rows)
            before = block.ffn.down, buffers.narrow
        yield self._norm(target.output_norm, head, before, tap=len(target.blk) - 1)

    def _embed(self) -> Launch:
        target, width = self.target, self.target.config.embedding_length
        defines = {"FORMAT": target.embedding_type, "WIDTH": width}
        args: list[Argument] = [
            self.buffers.h, target.token_embd, self.state.at("token"), np.int32(-1), self.count, np.int32(self.node0)
        ]  # fmt: skip
        return Launch("embed.cu", "embed", defines, (ceil_div(width, EMBED_THREADS), self.rows), EMBED_THREADS, args)

    def _norm(
        self, weight: Tensor, wanted: Projection, added: tuple[Projection, Tensor] | None, tap: int = -1
    ) -> Launch:
        buffers = self.buffers
        at = None
        if tap in buffers.taps:
            at = At(buffers.features, buffers.taps.index(tap) * self.target.config.embedding_length)
        return norm_launch(
            buffers.h, weight, self.target.config.rms_eps, self.rows, buffers.acts, wanted, self.count, self.node0,
            added=added, tap=at, tap_width=buffers.tap_width,
        )  # fmt: skip

    def _mixer(self, block: Block) -> Iterator[Launch]:
        yield from block.mixer.inputs.launches(self.buffers.acts, self.buffers.wide, self.rows)
        if isinstance(block.mixer, GatedDeltaNet):
            yield from self._delta_net(block.mixer, block.place)
        else:
            yield from self._attention(block.mixer, block.place)

    def _delta_net(self, mixer: GatedDeltaNet, place: int) -> Iterator[Launch]:
        memory, planes, launch = self.buffers.delta, self.buffers.wide, self.delta
        inputs, rows, node0 = mixer.inputs, np.int32(self.rows), np.int32(self.node0)
        width, capacity = np.int32(inputs.width), np.int32(memory.capacity)
        _, gate_at, alpha_at, beta_at = (np.int32(offset) for offset in inputs.offsets)
        defines = {**launch.defines, "SPLITS": inputs.slices}
        k, decay, conv = memory.k[place], memory.decay[place], memory.conv[place]
        yield Launch(
            "gdn.cu", "gdn_prepare", defines, launch.prepare_grid, launch.prepare_block,
            [self.state.pointer, node0, planes, rows, width, alpha_at, beta_at, mixer.ssm_conv1d, mixer.ssm_a,
             mixer.ssm_dt, conv, memory.inputs[place], memory.q, k, memory.v, memory.beta, decay, capacity],
            per_sm=2,
        )  # fmt: skip
        yield Launch(
            "gdn_tree.cu", "gdn_tree", launch.defines, launch.tree_grid, launch.tree_block,
            [self.state.pointer, node0, memory.s[place], k, memory.u[place], decay, memory.q, memory.v, memory.beta,
             memory.out, capacity],
            launch.tree_shared, per_sm=1,
        )  # fmt: skip
        groups = groups_of(mixer.ssm_out.columns)
        yield Launch(
            "gdn.cu", "gdn_out", defines, (groups, self.rows), WARP,
            [memory.out, planes, rows, width, gate_at, mixer.ssm_norm, np.float32(self.target.config.rms_eps),
             *mixer.ssm_out.wanted(self.buffers.acts), self.count, node0],
        )  # fmt: skip

    def _attention(self, mixer: Attention, place: int) -> Iterator[Launch]:
        heads, splits, kv, split = self.target.heads, self.buffers.splits, self.buffers.kv, self.split
        rows, node0, slots = np.int32(self.rows), np.int32(self.node0), np.int32(kv.slots)
        kv_heads, eps = np.int32(heads.kv_heads), np.float32(self.target.config.rms_eps)
        defines = {**split.defines, "PLANES": mixer.inputs.slices}
        k, v, planes = kv.k[place], kv.v[place], self.buffers.wide
        tasks = heads.heads + 2 * heads.kv_heads
        yield Launch(
            "attention.cu", "attn_prepare", defines, (ceil_div(tasks, PREPARE_WARPS), self.rows), WARP * PREPARE_WARPS,
            [self.state.pointer, node0, planes, rows, kv_heads, mixer.attn_q_norm, mixer.attn_k_norm,
             self.target.frequencies, eps, np.float32(heads.query_scale), splits.q, k, v, slots],
            per_sm=2,
        )  # fmt: skip
        yield Launch(
            "attention.cu", "attn_split", defines, split.grid, split.block,
            [self.state.pointer, node0, rows, splits.q, k, v, slots, splits.out, splits.stats],
            split.shared,
        )  # fmt: skip
        yield Launch(
            "attention.cu", "attn_combine", defines, (ceil_div(heads.heads * heads.head_dim, GROUP), self.rows),
            COMBINE_THREADS,
            [self.state.pointer, node0, splits.out, splits.stats, np.int32(splits.order.splits), planes, rows,
             kv_heads, *mixer.attn_output.wanted(self.buffers.acts)],
        )  # fmt: skip
