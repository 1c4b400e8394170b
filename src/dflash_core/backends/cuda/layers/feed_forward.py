"""SwiGLU on a card: weights and launches; it has no memory of a sequence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from dflash_core.arch import kinds
from dflash_core.backends.cuda.activations import Activations
from dflash_core.backends.cuda.chunk import HEADROOM, Chunk
from dflash_core.backends.cuda.launch import WARP, Device, Launch, ceil_div
from dflash_core.backends.cuda.layers.base import ChunkRun, FeedForward, Pass
from dflash_core.backends.cuda.layers.norm import chunk_rows
from dflash_core.backends.cuda.products import WEIGHT_BYTES, TensorSpec
from dflash_core.backends.cuda.projection import Projection
from dflash_core.backends.cuda.repack import GROUP, groups_of
from dflash_core.backends.cuda.upload import Upload


def swiglu_blocks(rows: int) -> tuple[int, int]:
    """Warps of a thread block, and the most blocks per multiprocessor, 0 for no limit.

    Blocks that start early crowd into the few multiprocessors that are free first: nine in one read 220 KB while
    others read nothing. Above 40 rows there are enough blocks for all multiprocessors.
    """
    if rows <= 4 or rows > 40:
        return 4, 0
    return (4 if rows <= 8 else 8), 2


# The defines of kernels/activation.cuh.
ACTIVATIONS: dict[kinds.Activation, dict[str, object]] = {
    "silu": {},
    "gelu_tanh": {"GELU": 1},
    "clamped_swiglu": {"CLAMP": kinds.CLAMP, "CLAMP_ALPHA": kinds.CLAMP_ALPHA},
}


class SwiGLU(FeedForward):
    """In the joined projection, rows of gate come before rows of up."""

    inputs: Projection
    out: Projection

    def __init__(
        self, device: Device, upload: Upload, prefix: str, spec: kinds.SwiGLU, activations: Activations
    ) -> None:
        gate, up = upload.matrix(prefix + "ffn_gate.weight"), upload.matrix(prefix + "ffn_up.weight")
        self.inputs = Projection(device, [gate, up], activations.inputs)
        self.out = Projection(device, [upload.matrix(prefix + "ffn_down.weight")], activations.outputs)
        self.width, self.activation = spec.width, ACTIVATIONS[spec.activation]

    @property
    def chunk_width(self) -> int:
        """Columns whose weights in gate, up and down fit a chunk's workspace: whole groups, parts of similar size."""
        groups = groups_of(self.width)
        fitting = WEIGHT_BYTES // (2 * max(self.inputs.columns, GROUP) * GROUP)
        return min(-(-groups // -(-groups // fitting)) * GROUP, self.width)

    def launches(self, scope: Pass) -> Iterator[Launch]:
        buffers, rows = scope.buffers, scope.rows
        yield from self.inputs.launches(buffers.acts, buffers.wide, rows)
        sizes = {"WIDTH": self.width, "SPLIT_K": self.inputs.split_k, "UP_AT": self.inputs.offsets[1]}
        defines: dict[str, object] = {**sizes, **self.activation}
        if self.out.makes_own(rows):
            args = (buffers.wide, self.inputs.width, buffers.narrow)
            yield self.out.launch("swiglu_matmul.cu", "swiglu_matmul", 1, args, defines)
            return
        warps, per_sm = swiglu_blocks(rows)
        yield Launch(
            "swiglu.cu", "swiglu", {**defines, **self.out.forms}, (ceil_div(groups_of(self.width), warps), rows),
            WARP * warps,
            [buffers.wide, rows, self.inputs.width, *self.out.act_args(buffers.acts), scope.count, scope.node0],
            per_sm=per_sm,
        )  # fmt: skip
        yield from self.out.launches(buffers.acts, buffers.narrow, rows)

    def chunk_buffers(self, rows: int) -> Sequence[Sequence[TensorSpec]]:
        half_rows = ((rows, self.chunk_width), torch.float16)
        return ((half_rows, half_rows),)

    def chunk(self, chunk: Chunk) -> ChunkRun:
        gate_rows, up_rows = chunk.arena.carve(*self.chunk_buffers(chunk.rows)[0])
        step = self.chunk_width
        swiglu = chunk_rows(
            chunk.ops, chunk.count, chunk.rows, "rows_swiglu", step, [gate_rows, up_rows], self.activation
        )
        (gate, up), (down,) = self.inputs.matrices, self.out.matrices
        every, products = range(gate.columns), chunk.products
        cuts = [range(at, min(at + step, self.width)) for at in range(0, self.width, step)]
        parts = [
            (products.part([gate], cut, every), products.part([up], cut, every), products.parts(down, cut))
            for cut in cuts
        ]

        def run(n: int, length: int) -> None:
            x, out = chunk.x[:n], chunk.out[:n]
            for gate_part, up_part, down_parts in parts:
                width = len(gate_part.weights)
                products.multiply(x, [gate_part], gate_rows[:n, :width])
                products.multiply(x, [up_part], up_rows[:n, :width], scale=HEADROOM)
                swiglu()
                products.multiply(gate_rows[:n, :width], down_parts, out, scale=1 / HEADROOM, add=True)

        return run
