"""The gated delta net on a card: weights, recurrent states, and launches for a pass and for a chunk of a prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from dflash_core.arch import kinds
from dflash_core.backends.cuda.activations import Activations
from dflash_core.backends.cuda.chunk import Chunk
from dflash_core.backends.cuda.device_state import DeviceState
from dflash_core.backends.cuda.kv import Empty, Tensors, copies
from dflash_core.backends.cuda.launch import WARP, Argument, Device, Launch, PinnedMemory, pointer
from dflash_core.backends.cuda.layers.base import Branch, ChunkRun, MixerLayers, MixerMemory, Pass, SequenceNeeds
from dflash_core.backends.cuda.layers.delta_shapes import (
    DIM,
    ORDER_INTS,
    PREPARE_THREADS,
    DeltaLaunch,
    DeltaShape,
    ScanLaunch,
)
from dflash_core.backends.cuda.layers.norm import chunk_rows
from dflash_core.backends.cuda.products import TensorSpec
from dflash_core.backends.cuda.projection import Projection
from dflash_core.backends.cuda.repack import groups_of
from dflash_core.backends.cuda.state import MAX_NODES, PASS_ROWS, WIDTHS
from dflash_core.backends.cuda.upload import Upload
from dflash_core.cache_types import F16, CachePair


class DeltaWeights:
    """A linear-attention layer."""

    def __init__(self, device: Device, upload: Upload, prefix: str, activations: Activations) -> None:
        names = ("attn_qkv", "attn_gate", "ssm_alpha", "ssm_beta")
        self.inputs = Projection(
            device, [upload.matrix(f"{prefix}{name}.weight") for name in names], activations.inputs
        )
        self.out = Projection(device, [upload.matrix(prefix + "ssm_out.weight")], activations.outputs)
        self.conv1d = upload.vector(prefix + "ssm_conv1d.weight")
        self.a = upload.vector(prefix + "ssm_a")
        self.dt = upload.vector(prefix + "ssm_dt.bias")
        self.norm = upload.vector(prefix + "ssm_norm.weight")


class DeltaNetLayers(MixerLayers):
    """Raises UnsupportedError for head shapes that the kernels do not support."""

    def __init__(self, device: Device, spec: kinds.DeltaNet, activations: Activations) -> None:
        self.device, self.spec, self.activations = device, spec, activations
        self.shape = DeltaShape.of(spec.key_heads, spec.value_heads, spec.key_dim, spec.value_dim, spec.conv_kernel)
        self.scan = ScanLaunch.of(self.shape, device.card.shared_bytes)
        self.chunked = self.scan is not None
        self.weights: list[DeltaWeights] = []

    def load(self, upload: Upload, prefix: str) -> None:
        self.weights.append(DeltaWeights(self.device, upload, prefix, self.activations))

    def projections(self, place: int) -> tuple[Projection, Projection]:
        return self.weights[place].inputs, self.weights[place].out

    def pass_buffers(self, context: int, kv: CachePair = F16) -> Sequence[TensorSpec]:
        return [(size, torch.float32) for size in self.shape.pass_shapes().values()]

    def row_buffers(self, capacity: int) -> Sequence[TensorSpec]:
        sizes, count = self.shape.layer_shapes(capacity), len(self.weights)
        shapes = [(count, *sizes[name]) for name in ("inputs", "k", "u", "decay")]
        # States that are saved for their node's second child and do not fit in shared memory.
        levels = (self.far_levels(capacity), *sizes["s"])
        return [(shape, torch.float32) for shape in (*shapes, levels)]

    def memory(self, needs: SequenceNeeds) -> DeltaMemory:
        return DeltaMemory(self, needs)

    def check(self) -> None:
        self.launch(PASS_ROWS)

    def launch(self, rows: int, later: bool = False) -> DeltaLaunch:
        """How a pass of `rows` rows is distributed over the card, a later one of its step or the first."""
        launch = DeltaLaunch.of(self.shape, rows, self.device.card)
        return replace(launch, makers=0) if later else launch

    def far_levels(self, capacity: int) -> int:
        """Levels of saved states in global memory that passes over trees of up to `capacity` nodes need."""
        return max(
            launch.far_levels(later)
            for rows in WIDTHS
            if (launch := DeltaLaunch.fitting(self.shape, rows, self.device.card))
            for later in ((False, True) if capacity > PASS_ROWS else (False,))
        )

    def chunk_buffers(self, rows: int, context: int = 0, kv: CachePair = F16) -> Sequence[Sequence[TensorSpec]]:
        """First what the projections write, then what the recurrence writes over the first of these tensors."""
        shape, half, full = self.shape, torch.float16, torch.float32
        padded = -(-rows // PASS_ROWS) * PASS_ROWS
        values = shape.value_heads * DIM
        heads = max(2 * shape.key_heads, shape.value_heads)
        first = max(4 * heads * DIM, 2 * (2 * values + shape.value_heads * PASS_ROWS))  # bytes per row
        return (
            (
                ((padded, first), torch.uint8),
                ((rows, 2 * shape.value_heads), full),
                ((shape.key_heads, padded, DIM), half),
                ((shape.key_heads, padded, DIM), half),
                ((shape.value_heads, padded, DIM), half),
                ((shape.value_heads, padded), full),
                ((shape.value_heads, padded), full),
            ),
            (
                ((shape.value_heads, padded, DIM), half),
                ((shape.value_heads, padded, PASS_ROWS), half),
                ((padded, values), half),
            ),
        )


class DeltaMemory(MixerMemory):
    """States of all layers, and the rows of a pass that its commit needs."""

    component = "states"

    def __init__(self, layers: DeltaNetLayers, needs: SequenceNeeds) -> None:
        self.layers, self.capacity = layers, needs.capacity
        sizes, count, on = layers.shape.layer_shapes(self.capacity), len(layers.weights), layers.device.torch_device
        self.detail = f"{count} {layers.spec.title} layers"
        self.s, self.conv = (torch.zeros(count, *sizes[name], device=on) for name in ("s", "conv"))
        self.nbytes = self.s.nbytes + self.conv.nbytes
        self.inputs, self.k, self.u, self.decay, self.levels = needs.rows.carve(*layers.row_buffers(self.capacity))
        self.order = torch.zeros(ORDER_INTS, dtype=torch.int32, device=on)
        self.q, self.v, self.beta, self.out = needs.arena.carve(*layers.pass_buffers(0))
        self._saved: PinnedMemory | None = None  # allocated when it is first needed

    def layer(self, place: int) -> DeltaBranch:
        return DeltaBranch(self, place)

    def flush(self, state: DeviceState) -> list[Launch]:
        launch = self.layers.launch(1)
        return [
            Launch(
                "gdn_flush.cu", "gdn_flush", launch.state_defines, launch.flush_grid(len(self.s)), launch.warps * WARP,
                [state.pointer, self.s, self.k, self.u, self.decay, self.conv, self.inputs, self.capacity],
            )
        ]  # fmt: skip

    def like(self, length: int) -> Tensors:
        return self.s, self.conv

    def checkpoint(self, length: int, empty: Empty) -> Tensors:
        return copies((self.s, self.conv), empty)

    def reaches(self, length: int, before: int) -> bool:
        return False

    def restore(self, saved: Tensors | None, length: int = 0, before: int = 0) -> None:
        for at, state in enumerate((self.s, self.conv)):
            if saved is None:
                state.zero_()
            else:
                state.copy_(saved[at])

    def save(self) -> None:
        """Copy all states to the host, in stream order."""
        for state, saved in self._pairs():
            saved.copy_(state, non_blocking=True)

    def undo(self, end: int) -> None:
        for state, saved in self._pairs():
            state.copy_(saved, non_blocking=True)

    def _pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        sizes = [self.s.numel(), self.conv.numel()]
        if self._saved is None:
            self._saved = self.layers.device.pinned(sum(sizes), np.float32)
        for state, saved in zip((self.s, self.conv), torch.split(torch.from_numpy(self._saved.array), sizes)):
            yield state, saved.view(state.shape)


class DeltaBranch(Branch):
    """One layer of a sequence."""

    inputs: Projection
    out: Projection

    def __init__(self, memory: DeltaMemory, place: int) -> None:
        self.memory, self.place, self.weights = memory, place, memory.layers.weights[place]
        self.inputs, self.out = self.weights.inputs, self.weights.out

    def launches(self, scope: Pass) -> Iterator[Launch]:
        if self.place == 0 and not scope.single_row:  # one order for all layers
            yield self.order(scope)
        yield from self.inputs.launches(scope.buffers.acts, scope.buffers.wide, scope.rows)
        yield from self.mix(scope)
        yield from self.out.launches(scope.buffers.acts, scope.buffers.narrow, scope.rows)

    def order(self, scope: Pass) -> Launch:
        """What the layers of a pass over a tree have in common."""
        memory = self.memory
        return Launch(
            "gdn_order.cu", "gdn_order", memory.layers.shape.defines, 1, MAX_NODES,
            [scope.state.pointer, scope.node0, scope.rows, memory.order],
        )  # fmt: skip

    def mix(self, scope: Pass) -> Iterator[Launch]:
        """From the partials of `inputs`, in buffers.wide, to the activations of `out`."""
        memory, weights, buffers, place = self.memory, self.weights, scope.buffers, self.place
        launch = memory.layers.launch(scope.rows, later=scope.node0 > 0)
        partials, rows, node0 = buffers.wide, scope.rows, scope.node0
        width, capacity = self.inputs.width, memory.capacity
        _, gate_at, alpha_at, beta_at = self.inputs.offsets
        split, state = {"SPLIT_K": self.inputs.split_k}, scope.state.pointer
        k, decay, conv, inputs = memory.k[place], memory.decay[place], memory.conv[place], memory.inputs[place]
        projected: list[Argument] = [
            partials, rows, width, alpha_at, beta_at, weights.conv1d, weights.a, weights.dt, conv, inputs
        ]  # fmt: skip
        if scope.single_row:
            yield Launch(
                "gdn_single_row.cu", "gdn_single_row", {**launch.state_defines, **split}, launch.grid,
                launch.single_row_block,
                [state, *projected, memory.s[place], k, memory.u[place], decay, memory.out, capacity],
                per_sm=1,
            )  # fmt: skip
        else:
            rest = projected
            if not launch.makers:
                yield Launch(
                    "gdn.cu", "gdn_prepare", {**launch.pass_defines, **split}, launch.shape.chunks,
                    PREPARE_THREADS,
                    [state, node0, *projected, memory.q, k, memory.v, memory.beta, decay, capacity],
                    per_sm=2,
                )  # fmt: skip
                rest = [node0, memory.q, memory.v, memory.beta]
            yield Launch(
                "gdn_recurrence.cu", "gdn_recurrence", {**launch.defines, **(split if launch.makers else {})},
                launch.grid, launch.block,
                [state, memory.order, memory.s[place], k, memory.u[place], decay, memory.out,
                 pointer(memory.levels if len(memory.levels) else None), capacity, *rest],
                launch.shared, per_sm=1,
            )  # fmt: skip
        out_defines = {**launch.pass_defines, **split, **self.out.forms}
        out: list[Argument] = [memory.out, partials, rows, width, gate_at, weights.norm]
        out += [np.float32(memory.layers.spec.eps), *self.out.act_args(buffers.acts), scope.count, node0]
        if scope.single_row or launch.makers:
            yield Launch(
                "gdn.cu", "gdn_out", {**out_defines, "COMMITS_CONV": 1}, launch.committing_grid, WARP,
                [*out, state, conv, inputs],
            )  # fmt: skip
        else:
            yield Launch("gdn.cu", "gdn_out", out_defines, (groups_of(self.out.columns), scope.rows), WARP, out)

    def chunk(self, chunk: Chunk) -> ChunkRun:
        memory, weights, products, ops, count = self.memory, self.weights, chunk.products, chunk.ops, chunk.count
        layers, launch = memory.layers, memory.layers.scan
        assert launch is not None, "chunks need more shared memory than this card has"
        first, then = layers.chunk_buffers(chunk.rows)
        mixed, gate_rows, q, k, v, decay, beta = chunk.arena.carve(*first)
        w, p, out = chunk.arena.carve(*then)
        z = w.view(-1)[: chunk.rows * layers.spec.inner].view(chunk.rows, -1)  # overwrites W after the recurrence
        conv = memory.conv[self.place]
        qkv, gate, alpha, beta_matrix = self.inputs.matrices
        gate_parts, out_parts = products.parts(gate), products.parts(self.out.matrices[0])
        rate_parts = [products.part([alpha, beta_matrix], range(alpha.rows), range(alpha.columns))]
        chunks = -(-chunk.rows // PASS_ROWS)
        rows = chunks * PASS_ROWS
        # Of each group of q, k and v: the channels, their product, its output, and the kernel that prepares it.
        turns = []
        for heads in launch.turns:
            channels = range(DIM * heads.start, DIM * heads.stop)
            made = mixed.view(-1)[: 4 * chunk.rows * len(channels)].view(torch.float32).view(chunk.rows, -1)
            prepare = Launch(
                "gdn_chunks.cu", "gdn_rows", launch.defines, (len(heads), chunks), 256,
                [count, heads.start, made, gate_rows, weights.conv1d, weights.a, weights.dt, conv, q, k, v, decay, beta,
                 rows],
            )  # fmt: skip
            turns.append((channels, products.parts(qkv, rows=channels), made, ops.add(prepare)))
        solve = ops.add(Launch(
            "gdn_chunks.cu", "gdn_solve", launch.defines, launch.solve_grid(chunks), 128,
            [count, q, k, v, decay, beta, w, p, rows],
            launch.solve_shared,
        ))  # fmt: skip
        scan = ops.add(Launch(
            "gdn_chunks.cu", "gdn_scan", launch.defines, launch.scan_grid, 256,
            [count, q, k, v, w, p, decay, memory.s[self.place], out, rows],
            launch.scan_shared,
        ))  # fmt: skip
        args: list[Argument] = [out, z, weights.norm, np.float32(layers.spec.eps)]
        norm = chunk_rows(ops, count, chunk.rows, "rows_gated_norm", layers.spec.inner, args)

        def run(n: int, length: int) -> None:
            x, fresh = chunk.x[:n], min(n, len(conv))
            products.multiply(x, rate_parts, gate_rows[:n])
            for channels, parts, made, prepare in turns:
                products.multiply(x, parts, made[:n])
                prepare()
                past = conv[:, channels.start : channels.stop]
                past[: len(conv) - fresh] = past[fresh:].clone()
                past[len(conv) - fresh :] = made[n - fresh : n]
            solve()  # from here on W, P and O overwrite `mixed`
            scan()
            products.multiply(x, gate_parts, z[:n])
            norm()
            products.multiply(z[:n], out_parts, chunk.out[:n], add=True)

        return run
