"""Attention on a card: weights, the KV cache, and launches for a pass and for a chunk of a prompt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from dflash_core.arch import kinds
from dflash_core.backends.cuda.activations import Activations
from dflash_core.backends.cuda.chunk import Chunk
from dflash_core.backends.cuda.device_state import DeviceState
from dflash_core.backends.cuda.kv import KVCache
from dflash_core.backends.cuda.launch import WARP, Argument, At, Device, Launch, ceil_div
from dflash_core.backends.cuda.layers.base import ChunkRun, MixerLayers, MixerMemory, MixerTensors, Pass, Upload
from dflash_core.backends.cuda.layers.split_attention import HeadShape, SplitLaunch, SplitOrder
from dflash_core.backends.cuda.layers.windowed_rows import windowed_attention, windowed_results
from dflash_core.backends.cuda.products import Arena, Op, TensorSpec
from dflash_core.backends.cuda.projection import Matrix, Projection
from dflash_core.backends.cuda.repack import GROUP
from dflash_core.backends.cuda.state import MAX_NODES, PASS_ROWS
from dflash_core.cache_types import F16, CachePair
from dflash_core.models.norm import Rotary

PREPARE_WARPS = 4  # heads that a block of attn_prepare and draft_prepare writes
UNPACK_BLOCKS = 1024  # thread blocks of attn_unpack_keys; they loop over the rows
COMBINE_THREADS = 4 * WARP  # threads of attn_combine and draft_combine: MERGE_WARPS of kernels/attention.cuh
# cuDNN's attention is left out: it plans again for every new prompt length, which takes about 50 ms.
LIBRARY = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class AttentionWeights:
    """A layer of the target or of the drafter: query, key and value in one projection.

    `pair`: the key and value matrices, if they have been read already.
    """

    def __init__(
        self,
        device: Device,
        upload: Upload,
        prefix: str,
        activations: Activations,
        spec: kinds.Attention,
        pair: tuple[Matrix, Matrix] | None = None,
    ) -> None:
        key_value = pair or (upload.matrix(prefix + "attn_k.weight"), upload.matrix(prefix + "attn_v.weight"))
        self.inputs = Projection(device, [upload.matrix(prefix + "attn_q.weight"), *key_value], activations.inputs)
        self.out = Projection(device, [upload.matrix(prefix + "attn_output.weight")], activations.inputs)
        self.q_norm = upload.vector(prefix + "attn_q_norm.weight")
        self.k_norm = upload.vector(prefix + "attn_k_norm.weight")
        if spec.scaling and spec.scaling.attention != 1:
            # The factor of cosines and sines is applied to the norms before them, so that kernels need no factor.
            for norm in (self.q_norm, self.k_norm):
                norm[: spec.rotary] *= spec.scaling.attention


class Splits:
    """Partial results of split attention for the widest pass, carved from `arena`, whose size includes `pieces`."""

    def __init__(self, order: SplitOrder, heads: HeadShape, arena: Arena) -> None:
        self.order = order
        self.out, self.stats, self.q = arena.carve(*self.pieces(order, heads))

    @staticmethod
    def pieces(order: SplitOrder, heads: HeadShape) -> Sequence[TensorSpec]:
        """Partial sums, softmax statistics and queries."""
        rows = heads.kv_heads * heads.packed_rows(PASS_ROWS)
        sizes = order.parts * rows * heads.head_dim, order.parts * rows * 2, rows * heads.head_dim
        return [((size,), dtype) for size, dtype in zip(sizes, (torch.float32, torch.float32, torch.float16))]


def frequencies(spec: kinds.Attention, device: Device) -> Tensor:
    """Frequencies of the rotary embedding, rounded as in the reference."""
    return Rotary(spec.rotary, spec.rope_base, torch.float32, spec.scaling).frequencies.to(device.torch_device)


class AttentionLayers(MixerLayers):
    """Implements `base.MixerLayers`. Raises UnsupportedError for head shapes that the kernels do not support."""

    chunked = True

    def __init__(self, device: Device, spec: kinds.Attention, activations: Activations) -> None:
        self.device, self.spec, self.activations = device, spec, activations
        self.heads = HeadShape(spec.head_dim, spec.heads, spec.kv_heads, spec.rotary)
        self.frequencies = frequencies(spec, device)
        self.weights: list[AttentionWeights] = []

    def load(self, upload: Upload, prefix: str) -> None:
        self.weights.append(AttentionWeights(self.device, upload, prefix, self.activations, self.spec))

    def projections(self, place: int) -> tuple[Projection, Projection]:
        return self.weights[place].inputs, self.weights[place].out

    def split_order(self, context: int, kv: CachePair) -> SplitOrder:
        card = self.device.card
        return SplitOrder.of(self.heads, slots_of(context), card.multiprocessors, card.shared_bytes, trees=True, kv=kv)

    def pass_buffers(self, context: int, kv: CachePair = F16) -> Sequence[TensorSpec]:
        return Splits.pieces(self.split_order(context, kv), self.heads)

    def memory(self, context: int, capacity: int, arena: Arena, rows: Arena, kv: CachePair = F16) -> AttentionMemory:
        return AttentionMemory(self, context, arena, kv)

    def turns(self, kv: CachePair) -> Sequence[range]:
        """The groups of kv heads that a chunk processes at once: one head each if the cache must be unpacked."""
        count = self.heads.kv_heads
        half = 1 if kv != F16 else count // 2 if count % 2 == 0 else count
        return [range(first, first + half) for first in range(0, count, half)]

    def chunk_buffers(self, rows: int, context: int, kv: CachePair = F16) -> Sequence[Sequence[TensorSpec]]:
        heads, together = self.heads, len(self.turns(kv)[0])
        columns = together * (self.spec.query_rows // heads.kv_heads + 2 * heads.head_dim)
        projected = ((rows, columns), torch.float32)
        queries = ((together, rows * heads.group, heads.head_dim), torch.float16)
        unpacked = ((together, slots_of(context), heads.head_dim), torch.float16)
        return ((projected, queries, *(unpacked for kind in (kv.k, kv.v) if kind != F16.k)),)

    def chunk_results(self, rows: int, context: int, kv: CachePair = F16) -> int:
        q = len(self.turns(kv)[0]), self.heads.group, rows, self.heads.head_dim
        copies = sum(kind == F16.k for kind in (kv.k, kv.v))  # the other types are unpacked into the arena
        return windowed_results(q, context, copies)


def slots_of(context: int) -> int:
    """Cache slots for `context` positions: a tree's nodes are stored after the committed ones."""
    return context + MAX_NODES


class AttentionMemory(MixerMemory):
    """Implements `base.MixerMemory`: rewinding only truncates keys and values, so a checkpoint is empty."""

    component = "target KV"

    def __init__(self, layers: AttentionLayers, context: int, arena: Arena, kv: CachePair) -> None:
        self.layers, heads = layers, layers.heads
        slots, on = slots_of(context), layers.device.torch_device
        self.kv = KVCache(len(layers.weights), heads.kv_heads, slots, heads.head_dim, on, kv)
        self.splits = Splits(layers.split_order(context, kv), heads, arena)

    @property
    def nbytes(self) -> int:
        return self.kv.nbytes

    def layer(self, place: int) -> AttentionBranch:
        return AttentionBranch(self.layers, self.layers.weights[place], self.kv, self.splits, place)

    def commit(self, state: DeviceState, stamps: Tensor) -> list[Launch]:
        return self.kv.commit(state, stamps)

    def positions(self, begin: int, end: int) -> MixerTensors:
        return self.kv.positions(begin, end)


@dataclass(frozen=True, slots=True)
class AttentionBranch:
    """Implements `base.Branch` for one layer of a sequence."""

    layers: AttentionLayers
    weights: AttentionWeights
    kv: KVCache
    splits: Splits
    place: int

    @property
    def inputs(self) -> Projection:
        return self.weights.inputs

    @property
    def out(self) -> Projection:
        return self.weights.out

    @property
    def _defines(self) -> dict[str, object]:
        return {**({} if self.layers.spec.gate == "sigmoid" else {"UNGATED": 1}), **self.kv.defines}

    def launches(self, scope: Pass) -> Iterator[Launch]:
        weights, splits, heads, buffers = self.weights, self.splits, self.layers.heads, scope.buffers
        split = SplitLaunch.of(heads, splits.order, scope.rows, self.layers.device.card.shared_bytes)
        rows, node0, kv_heads = np.int32(scope.rows), np.int32(scope.node0), np.int32(heads.kv_heads)
        defines = {**split.defines, "SPLIT_K": self.inputs.split_k, **self._defines}
        cache, count = self.kv.layer(self.place), np.int32(splits.order.splits)
        norms: list[Argument] = [weights.q_norm, weights.k_norm, self.layers.frequencies]
        norms += [np.float32(self.layers.spec.eps), np.float32(heads.query_scale)]
        windowed: dict[str, object] = {} if scope.window is None else {"WINDOWED": 1}
        results: list[Argument] = [splits.out, splits.stats, *(() if scope.window is None else (scope.window,))]
        yield from self.inputs.launches(buffers.acts, buffers.wide, scope.rows)
        if scope.single_row and split.holds_row:
            yield Launch(
                "attention_alone.cu", "attn_alone", {**defines, **windowed}, split.grid, split.single_row_block,
                [scope.state.pointer, buffers.wide, *norms, count, *cache, *results],
                split.single_row_shared,
            )  # fmt: skip
        else:
            tasks = heads.heads + 2 * heads.kv_heads
            yield Launch(
                "attention.cu", "attn_prepare", defines, (ceil_div(tasks, PREPARE_WARPS), scope.rows),
                WARP * PREPARE_WARPS,
                [scope.state.pointer, node0, buffers.wide, rows, kv_heads, *norms, splits.q, *cache],
                per_sm=2,
            )  # fmt: skip
            yield Launch(
                "attention.cu", "attn_split", {**defines, **windowed}, split.grid, split.block,
                [scope.state.pointer, node0, rows, count, splits.q, *cache, *results],
                split.shared,
            )  # fmt: skip
        yield Launch(
            "attention.cu", "attn_combine", defines, (ceil_div(heads.heads * heads.head_dim, GROUP), scope.rows),
            COMBINE_THREADS,
            [scope.state.pointer, node0, splits.out, splits.stats, count, buffers.wide, rows, kv_heads,
             *self.out.act_args(buffers.acts)],
        )  # fmt: skip
        yield from self.out.launches(buffers.acts, buffers.narrow, scope.rows)

    def chunk(self, chunk: Chunk) -> ChunkRun:
        turns = [self._turn(chunk, heads) for heads in self.layers.turns(self.kv.kv)]

        def run(n: int, length: int) -> None:
            for turn in turns:
                turn(n, length)

        return run

    def _turn(self, chunk: Chunk, together: range) -> ChunkRun:
        """A chunk's attention for some kv heads, from chunk.x into chunk.h."""
        # Imported here: it loads torch's compiler, which takes a second that a plan from headers does not need.
        from torch.nn.attention.bias import causal_lower_right

        spec, heads, kv, place, products = self.layers.spec, self.layers.heads, self.kv, self.place, chunk.products
        count, dim, per_head = len(together), heads.head_dim, spec.query_rows // heads.kv_heads
        pieces = self.layers.chunk_buffers(chunk.rows, kv.slots - MAX_NODES, kv.kv)[0]
        projected, queries, *unpacked = chunk.arena.carve(*pieces)
        inputs = [
            products.parts(matrix, rows=range(rows * together.start, rows * together.stop))
            for matrix, rows in zip(self.inputs.matrices, (per_head, dim, dim))
        ]
        (output,) = self.out.matrices
        mixed_width = heads.group * dim
        out = products.parts(output, range(mixed_width * together.start, mixed_width * together.stop))
        sizes = {"HEAD_DIM": dim, "ROTARY": heads.rotary, "GROUP": heads.group, "SPLIT_K": 1}
        defines = {**sizes, **self._defines}
        keys, values, slots = kv.layer(place)
        args: list[Argument] = [
            chunk.count, projected, np.int32(chunk.rows), np.int32(count), self.weights.q_norm,
            self.weights.k_norm, self.layers.frequencies, np.float32(spec.eps), np.float32(1), queries,
            keys[together.start :], values[together.start :], slots,
        ]  # fmt: skip
        grid = (ceil_div(count * (heads.group + 2), PREPARE_WARPS), chunk.rows)
        prepare = chunk.ops.add(Launch("attention_rows.cu", "attn_rows", defines, grid, WARP * PREPARE_WARPS, args))

        copies = iter(unpacked)
        visible_keys, visible_values = seen = [
            self._visible(
                chunk, together, f"attn_unpack_{name}", rows, defines, None if kind == F16.k else next(copies)
            )
            for name, rows, kind in (("keys", keys, kv.kv.k), ("values", values, kv.kv.v))
        ]

        def run(n: int, length: int) -> None:
            products.multiply_all(chunk.x[:n], inputs, projected[:n])
            prepare()
            q = queries.view(count, chunk.rows, heads.group, dim)[:, :n].transpose(1, 2)
            if chunk.runs:
                k, v = self._of_runs(chunk, together, visible_keys), self._of_runs(chunk, together, visible_values)
                mixed = windowed_attention(q, k, v, chunk.window, length, LIBRARY)
            else:
                for one in seen:
                    if one.unpack is not None:
                        one.unpack()
                k, v = (one.halves[:, : length + n][:, None].expand(-1, heads.group, -1, -1) for one in seen)
                with sdpa_kernel(LIBRARY):
                    mixed = scaled_dot_product_attention(q, k, v, attn_mask=causal_lower_right(n, length + n))
            # The queries are no longer needed: rows with all heads side by side overwrite them.
            rows = queries.view(-1)[: mixed.numel()].view(n, count, heads.group, dim)
            if spec.gate == "sigmoid":
                gate = projected[:n, : count * per_head].view(n, count * heads.group, 2, dim)[:, :, 1]
                gate = gate.sigmoid_().view(n, count, heads.group, dim).permute(1, 2, 0, 3)
                torch.mul(mixed, gate, out=rows.permute(1, 2, 0, 3))
            else:
                rows.permute(1, 2, 0, 3).copy_(mixed)
            products.multiply(rows.view(n, -1), out, chunk.h[:n], add=True)

        return run

    def _visible(
        self, chunk: Chunk, together: range, name: str, rows: Tensor, defines: Mapping[str, object], copy: Tensor | None
    ) -> _Visible:
        """Keys, or values, of some kv heads: the cache's `rows`, or their unpacked `copy`, written by kernel `name`."""
        if copy is None:
            return _Visible(rows, rows[together.start : together.stop], None)
        count, slots = np.int32(len(together)), np.int32(self.kv.slots)
        to: list[Argument] = [chunk.count, rows[together.start :], count, slots, copy]
        launch = Launch("attention_rows.cu", name, defines, UNPACK_BLOCKS, WARP * PREPARE_WARPS, to)
        return _Visible(rows, copy, chunk.ops.add(launch))

    def _of_runs(self, chunk: Chunk, together: range, visible: _Visible) -> Tensor:
        """The keys, or values, of the chunk's runs, concatenated, as f16."""
        halves = visible.halves
        if visible.unpack is None:
            return torch.cat([halves[:, run] for run in chunk.runs], dim=1)
        count, slots, end = np.int32(len(together)), np.int32(self.kv.slots), 0
        for place, run in enumerate(chunk.runs):
            begin = together.start * self.kv.slots + run.start
            some: list[Argument] = [
                At(chunk.run_counts, 2 * place), At(visible.rows, begin * visible.rows.shape[-1]), count, slots,
                At(halves, end * halves.shape[-1]),
            ]  # fmt: skip
            self.layers.device.bind([replace(visible.unpack.launch, args=some)])()
            end += run.stop - run.start
        return halves[:, :end]


@dataclass(frozen=True, slots=True)
class _Visible:
    """Keys, or values, that a chunk's rows see: `rows` of the whole cache, `halves` (f16) of the kv heads in use,
    and the operation that unpacks them if the cache is packed."""

    rows: Tensor
    halves: Tensor
    unpack: Op | None
