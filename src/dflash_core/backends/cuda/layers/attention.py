"""Attention on a card: the KV cache, and launches for a pass and for a chunk of a prompt."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import softplus

from dflash_core.arch import kinds
from dflash_core.backends.cuda.activations import Activations
from dflash_core.backends.cuda.chunk import Chunk, Stage
from dflash_core.backends.cuda.device_state import DeviceState
from dflash_core.backends.cuda.kv import TILE, KVCache, Layer, Rings, Tensors, ring_slots
from dflash_core.backends.cuda.launch import WARP, Argument, Device, Launch, ceil_div, optional
from dflash_core.backends.cuda.layers.attention_weights import (
    AttentionWeights,
    frequencies,
    projected_rows,
    turn_factor,
)
from dflash_core.backends.cuda.layers.base import Branch, ChunkRun, MixerLayers, MixerMemory, Pass, SequenceNeeds
from dflash_core.backends.cuda.layers.chunk_attention import (
    SINK_DIMS,
    causal_attention,
    visible_rows,
    windowed_attention,
    windowed_results,
    with_sinks,
)
from dflash_core.backends.cuda.layers.split_attention import PREPARE_WARPS, HeadShape, SplitLaunch, SplitOrder, Splits
from dflash_core.backends.cuda.products import TensorSpec
from dflash_core.backends.cuda.projection import Projection
from dflash_core.backends.cuda.repack import GROUP
from dflash_core.backends.cuda.state import MAX_NODES
from dflash_core.backends.cuda.upload import Upload
from dflash_core.cache_types import F16, RECENT_STEP, CachePair
from dflash_core.errors import cpu_only

COMBINE_THREADS = 4 * WARP  # threads of attn_combine and draft_combine: MERGE_WARPS of kernels/attention.cuh
# Blocks of attn_combine per multiprocessor that are spread over all: 24 rows of an 8B take 3.0 us in place of 4.5. With
# more, the shared memory that spreads them leaves too little L1 to the next kernel: a 27B takes 2 us longer (H200).
COMBINE_SPREAD = (2, 3)
MIN_RECENT = 384  # positions of a recent window: near tiles (kernels/attention_parts.cuh) are halves
# cuDNN's attention is left out: it plans again for every new prompt length, which takes about 50 ms.
LIBRARY = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def slots_of(context: int) -> int:
    """Cache slots for `context` positions: a tree's nodes are stored after the committed ones."""
    return context + MAX_NODES


class AttentionLayers(MixerLayers):
    """Raises UnsupportedError for head shapes that the kernels do not support."""

    def __init__(self, device: Device, spec: kinds.Attention, activations: Activations) -> None:
        self.device, self.spec, self.activations = device, spec, activations
        self.heads = HeadShape(spec.head_dim, spec.heads, spec.kv_heads, spec.rotary)
        self.frequencies = frequencies(spec, device)
        self.weights: list[AttentionWeights] = []
        # The window of kernels/attention_parts.cuh: the last positions that a query sees, and the first ones.
        seen = torch.tensor([spec.window, 0], dtype=torch.int32)
        self.window = seen.to(device.torch_device) if spec.window else None
        self.made = 2 * spec.kv_heads if spec.kv_from is None else 0
        scale = self.heads.query_scale if spec.scale is None else math.log2(math.e) * spec.scale
        self.query_scale = np.float32(scale)

    @property
    def defines(self) -> dict[str, object]:
        """Of kernels/heads.cuh."""
        spec = self.spec
        options = {
            "UNGATED": spec.gate != "sigmoid",
            "HEAD_GATES": spec.gate == "softplus",
            "VALUES_NORMED": spec.v_norm,
            "KEYS_ARE_VALUES": spec.key_is_value,
            "BORROWED": spec.kv_from is not None,
        }
        found: dict[str, object] = {name: 1 for name, given in options.items() if given}
        if not spec.qk_norm:
            found["UNNORMED"] = 1
            if turn_factor(spec) != 1:
                found["TURN_FACTOR"] = turn_factor(spec)
        if spec.query_growth is not None:
            found["GROWTH"], found["GROWTH_LENGTH"] = spec.query_growth
        return found

    def load(self, upload: Upload, prefix: str) -> None:
        if self.spec.rope_factors and not self.weights:
            factors = upload.vector(kinds.ROPE_FACTORS)
            self.frequencies = frequencies(self.spec, self.device, factors)
        self.weights.append(AttentionWeights(self.device, upload, prefix, self.activations, self.spec))

    def projections(self, place: int) -> tuple[Projection, Projection]:
        return self.weights[place].inputs, self.weights[place].out

    def stored(self, kv: CachePair) -> CachePair:
        """The types of these layers' keys and values. With a window no longer than the recent one, a row reads halves
        only. Raises UnsupportedError for recent windows without a kernel."""
        if kv.recent and kv.recent < MIN_RECENT:
            raise cpu_only(f"keys and values as {kv}, expected +{MIN_RECENT} or more on a card")
        if kv.recent and self.spec.window > kv.recent:
            raise cpu_only(
                f"keys and values as {kv} of layers with a window of {self.spec.window:,}, expected {kv.past}"
            )
        return F16 if kv.recent and self.spec.window else kv

    def split_order(self, context: int, kv: CachePair) -> SplitOrder:
        card, slots = self.device.card, slots_of(context)
        kv = self.stored(kv)
        return SplitOrder.of(self.heads, slots, card.multiprocessors, card.shared_bytes, trees=True, kv=kv)

    def pass_buffers(self, context: int, kv: CachePair = F16) -> Sequence[TensorSpec]:
        return Splits.pieces(self.split_order(context, kv), self.heads)

    def memory(self, needs: SequenceNeeds) -> MixerMemory:
        if needs.lender is None:
            return AttentionMemory(self, needs)
        assert isinstance(needs.lender, AttentionBranch), "keys and values of a layer without any"
        return BorrowingMemory(self, needs, needs.lender)

    def turns(self, kv: CachePair) -> Sequence[range]:
        """The groups of kv heads that a chunk processes at once: one head each if the cache must be unpacked."""
        count, kv = self.heads.kv_heads, self.stored(kv)
        half = 1 if kv != F16 else count // 2 if count % 2 == 0 else count
        return [range(first, first + half) for first in range(0, count, half)]

    def chunk_buffers(self, rows: int, context: int, kv: CachePair = F16) -> Sequence[Sequence[TensorSpec]]:
        heads, together, kv = self.heads, len(self.turns(kv)[0]), self.stored(kv)
        columns = together * sum(projected_rows(self.spec).values()) // heads.kv_heads
        projected = ((rows, columns), torch.float32)
        gates = [((rows, heads.heads), torch.float32)] if self.spec.gate == "softplus" else []
        queries = ((together, rows * heads.group, heads.head_dim), torch.float16)
        unpacked = ((together, self._shown(rows, slots_of(context)), heads.head_dim), torch.float16)
        border = ((together, rows + RECENT_STEP, heads.head_dim), torch.float16)  # what a chunk reads in both forms
        copies = [unpacked for kind in (kv.k, kv.v) if kind != F16.k] + [border, border] * bool(kv.recent)
        return ((*gates, projected, queries, *copies),)

    def chunk_results(self, rows: int, context: int, kv: CachePair = F16) -> int:
        dim = self.heads.head_dim + SINK_DIMS * self.spec.sinks
        q, kv = (len(self.turns(kv)[0]), self.heads.group, rows, dim), self.stored(kv)
        copies = sum(kind == F16.k for kind in (kv.k, kv.v))  # the other types are unpacked into the arena
        seen = self._shown(rows, context)
        if not self.spec.sinks:
            return windowed_results(q, seen, copies)
        return windowed_results(q, seen + 1, copies + 2, more_queries=True)

    def _shown(self, rows: int, positions: int) -> int:
        """How many of so many positions a chunk of `rows` rows sees at most."""
        return min(positions, self.spec.window + rows) if self.spec.window else positions


class AttentionMemory(Rings, MixerMemory):
    """Keys and values of all layers with one spec. Layers with a window have a ring, and a checkpoint holds the
    window's rows; so have the halves of a recent window. Of others, rewinding only truncates keys and values, and a
    checkpoint is empty.

    A chunk's rows and a tree's nodes are written before the rows that they see are read, so a ring has slots for both
    beyond its window.
    """

    component = "target KV"

    def __init__(self, layers: AttentionLayers, needs: SequenceNeeds) -> None:
        heads, window, kv = layers.heads, layers.spec.window, layers.stored(needs.kv)
        positions, spare = slots_of(needs.context), max(needs.chunk_rows, TILE) + needs.capacity
        slots = ring_slots(window, spare, positions)
        recent, ring = ring_slots(kv.recent + RECENT_STEP, spare, positions), slots < positions
        self.kv = KVCache(
            len(layers.weights), heads.kv_heads, slots, heads.head_dim, layers.device.torch_device, kv,
            ring=ring, recent_slots=recent,
        )  # fmt: skip
        rows = [Layer.of(self.kv, window)]
        if self.kv.newest is not None:
            rows.append(Layer.of(self.kv.newest, kv.recent, RECENT_STEP))
        super().__init__(rows, needs.capacity, positions)
        self.detail = f"{needs.kv}, {needs.context:,} positions, {slots:,} in layers with a window" if ring else ""
        self.layers, self.nbytes = layers, self.kv.nbytes
        self.splits = Splits(layers.split_order(needs.context, needs.kv), heads, needs.arena)

    def layer(self, place: int) -> AttentionBranch:
        return AttentionBranch(self.layers, self.layers.weights[place], self.kv, self.splits, place)

    def commit(self, state: DeviceState, stamps: Tensor) -> list[Launch]:
        return self.kv.commit(state, stamps)

    def positions(self, begin: int, end: int) -> Tensors:
        """The first dimension is the layer."""
        return () if self.kv.ring else self.kv.positions(begin, end)


class BorrowingMemory(MixerMemory):
    """Of layers that read the keys and values of another one, `lender`, which runs before them in a pass."""

    component = "target KV"
    nbytes = 0

    def __init__(self, layers: AttentionLayers, needs: SequenceNeeds, lender: AttentionBranch) -> None:
        self.layers, self.lender = layers, lender
        self.splits = Splits(layers.split_order(needs.context, needs.kv), layers.heads, needs.arena)

    def layer(self, place: int) -> AttentionBranch:
        return AttentionBranch(self.layers, self.layers.weights[place], self.lender.kv, self.splits, self.lender.place)


class AttentionBranch(Branch):
    """One layer of a sequence. `place`: of its keys and values in `kv`."""

    inputs: Projection
    out: Projection

    def __init__(
        self, layers: AttentionLayers, weights: AttentionWeights, kv: KVCache, splits: Splits, place: int
    ) -> None:
        self.layers, self.weights, self.kv, self.splits, self.place = layers, weights, kv, splits, place
        self.inputs, self.out, self.out_bias = weights.inputs, weights.out, weights.out_bias

    @property
    def _defines(self) -> dict[str, object]:
        return {**self.layers.defines, **self.kv.defines}

    def launches(self, scope: Pass) -> Iterator[Launch]:
        weights, splits, heads, buffers = self.weights, self.splits, self.layers.heads, scope.buffers
        split = SplitLaunch.of(heads, splits.order, scope.rows, self.layers.device.card.shared_bytes)
        rows, node0, kv_heads = scope.rows, scope.node0, heads.kv_heads
        defines = {**split.defines, "SPLIT_K": self.inputs.split_k, **self._defines}
        cache, count, recent = self.kv.layer(self.place), splits.order.splits, self.kv.recent(self.place)
        norms: list[Argument] = [weights.q_norm, weights.k_norm, self.layers.frequencies]
        norms += [np.float32(self.layers.spec.eps), self.layers.query_scale]
        windowed, window = optional(WINDOWED=scope.window if self.layers.window is None else self.layers.window)
        results: list[Argument] = [splits.out, splits.stats, *recent, *window]
        biased, bias = optional(BIASED=weights.bias)  # of the kernels that sum up the projection
        sunk, sinks = optional(SINKS=weights.sinks)
        yield from self.inputs.launches(buffers.acts, buffers.wide, scope.rows)
        own = self.layers.made  # heads of keys and values that a row makes
        if scope.single_row and split.holds_row and own:
            yield Launch(
                "attention_single_row.cu", "attn_single_row", {**defines, **windowed, **biased}, split.grid,
                split.single_row_block,
                [scope.state.pointer, buffers.wide, *norms, count, *cache, *results, *bias],
                split.single_row_shared,
            )  # fmt: skip
        else:
            blocks = ceil_div(heads.heads + own, PREPARE_WARPS)
            yield Launch(
                "attention.cu", "attn_prepare", {**defines, **biased}, (blocks, scope.rows), WARP * PREPARE_WARPS,
                [scope.state.pointer, node0, buffers.wide, rows, kv_heads, *norms, splits.q, *cache, *recent, *bias],
                per_sm=max(2, self._one_round(blocks * scope.rows)),
            )  # fmt: skip
            yield Launch(
                "attention.cu", "attn_split", {**defines, **windowed}, split.grid, split.block,
                [scope.state.pointer, node0, rows, count, splits.q, *cache, *results],
                split.shared,
            )  # fmt: skip
        groups = ceil_div(heads.heads * heads.head_dim, GROUP)
        spread = self._one_round(groups * scope.rows)
        yield Launch(
            "attention.cu", "attn_combine", {**defines, **sunk}, (groups, scope.rows), COMBINE_THREADS,
            [scope.state.pointer, node0, splits.out, splits.stats, count, buffers.wide, rows, kv_heads,
             *self.out.act_args(buffers.acts), *sinks],
            per_sm=spread if spread in COMBINE_SPREAD else 0,
        )  # fmt: skip
        yield from self.out.launches(buffers.acts, buffers.narrow, scope.rows)

    def _one_round(self, blocks: int) -> int:
        """The fewest thread blocks per multiprocessor with which all of them run at once: more would crowd into those
        that are free first."""
        return ceil_div(blocks, self.layers.device.card.multiprocessors)

    def chunk(self, chunk: Chunk) -> ChunkRun:
        turns = [self._turn(chunk, heads) for heads in self.layers.turns(self.kv.kv)]

        def run(n: int, length: int) -> None:
            for turn in turns:
                turn(n, length)

        return run

    def _turn(self, chunk: Chunk, together: range) -> ChunkRun:
        """A chunk's attention for some kv heads, from chunk.x into chunk.out."""
        spec, heads, kv, place, products = self.layers.spec, self.layers.heads, self.kv, self.place, chunk.products
        count, dim, per_head = len(together), heads.head_dim, spec.query_rows // heads.kv_heads
        carved = list(chunk.arena.carve(*self.layers.chunk_buffers(chunk.rows, kv.slots - MAX_NODES, kv.kv)[0]))
        gates = carved.pop(0) if spec.gate == "softplus" else None
        projected, queries, *unpacked = carved
        rows_of = [rows // heads.kv_heads for rows in projected_rows(spec).values()]
        inputs = [
            products.parts(matrix, rows=range(rows * together.start, rows * together.stop))
            for matrix, rows in zip(self.inputs.matrices, rows_of)
        ]
        gate_parts = products.parts(self.inputs.matrices[-1]) if gates is not None else ()
        (output,) = self.out.matrices
        mixed_width = heads.group * dim
        out = products.parts(output, range(mixed_width * together.start, mixed_width * together.stop))
        sizes = {"HEAD_DIM": dim, "ROTARY": heads.rotary, "GROUP": heads.group, "SPLIT_K": 1}
        biased, bias = optional(BIASED=self._bias_of(together))
        defines = {**sizes, **self._defines, **biased}
        sinks, newest = self.weights.sinks, kv.newest
        view = chunk.view(spec.window, newest.slots if newest else kv.slots if kv.ring else 0, kv.kv)
        # The library's own where it is the usual one.
        scale = spec.score_scale if sinks is not None else spec.scale
        if sinks is not None:
            sinks = sinks[heads.group * together.start : heads.group * together.stop]
        caches = [
            one[together.start :] if isinstance(one, Tensor) else one for one in (*kv.layer(place), *kv.recent(place))
        ]
        args: list[Argument] = [
            chunk.count, projected, chunk.rows, count, self.weights.q_norm,
            self.weights.k_norm, self.layers.frequencies, np.float32(spec.eps), np.float32(1), queries,
            *caches, *bias,
        ]  # fmt: skip
        tasks = count * heads.group + self.layers.made * count // heads.kv_heads
        grid = (ceil_div(tasks, PREPARE_WARPS), chunk.rows)
        prepare = chunk.ops.add(Launch("attention_rows.cu", "attn_rows", defines, grid, WARP * PREPARE_WARPS, args))

        visible = list(visible_rows(chunk, view, together, kv, place, unpacked, defines))

        def attend(q: Tensor, stage: Stage, length: int) -> Tensor:
            """The rows of one stage."""
            k, v = (rows.seen(view, stage) for rows in visible)
            q, first, length = q[:, :, stage.rows], int(sinks is not None), length + stage.rows.start
            if sinks is not None:
                q, k, v = with_sinks(q, k, v, sinks, spec.score_scale)
            if view.masked:
                mixed = windowed_attention(q, k, v, view.window, length, scale, first, view.shown)
            else:
                k, v = (rows[:, None].expand(-1, heads.group, -1, -1) for rows in (k, v))
                mixed = causal_attention(q, k, v, scale)
            return mixed[..., :dim]

        def run(n: int, length: int) -> None:
            products.multiply_all(chunk.x[:n], inputs, projected[:n])
            if gates is not None and together.start == 0:  # of all heads: later turns find them here
                products.multiply(chunk.x[:n], gate_parts, gates[:n])
                gates[:n] = softplus(gates[:n])
            prepare()
            q = queries.view(count, chunk.rows, heads.group, dim)[:, :n].transpose(1, 2)
            with sdpa_kernel(LIBRARY):
                parts = [attend(q, stage, length) for stage in view.stages]
            mixed = parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
            # The queries are no longer needed: rows with all heads side by side overwrite them.
            rows = queries.view(-1)[: mixed.numel()].view(n, count, heads.group, dim)
            if spec.gate == "sigmoid":
                gate = projected[:n, : count * per_head].view(n, count * heads.group, 2, dim)[:, :, 1]
                gate = gate.sigmoid_().view(n, count, heads.group, dim).permute(1, 2, 0, 3)
                torch.mul(mixed, gate, out=rows.permute(1, 2, 0, 3))
            elif gates is not None:
                own = gates[:n].view(n, heads.kv_heads, heads.group, 1)[:, together.start : together.stop]
                torch.mul(mixed, own.permute(1, 2, 0, 3), out=rows.permute(1, 2, 0, 3))
            else:
                rows.permute(1, 2, 0, 3).copy_(mixed)
            products.multiply(rows.view(n, -1), out, chunk.out[:n], add=True)
            if self.out_bias is not None and together.start == 0:
                chunk.out[:n] += self.out_bias

        return run

    def _bias_of(self, together: range) -> Tensor | None:
        """The biases of what some kv heads need: query, key and value, next to each other."""
        heads, bias = self.layers.heads, self.weights.bias
        if bias is None:
            return None
        parts = torch.split(bias, [*projected_rows(self.layers.spec).values()])
        each = [len(part) // heads.kv_heads for part in parts]
        return torch.cat([part[a * together.start : a * together.stop] for part, a in zip(parts, each)])
