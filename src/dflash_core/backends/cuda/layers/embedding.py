"""The embedding on a card: rows of the matrix, in the file's own block format, become rows of the residual stream;
and per-layer inputs: what a token gives to every layer, and the part of a layer that uses it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from dflash_core.arch.spec import ModelSpec
from dflash_core.backends.cuda.activations import Activations
from dflash_core.backends.cuda.chunk import HEADROOM, Chunk
from dflash_core.backends.cuda.launch import WARP, Argument, At, Device, HasAddress, Launch, ceil_div
from dflash_core.backends.cuda.layers.base import ChunkRun, FeedForward, Pass
from dflash_core.backends.cuda.products import TensorSpec
from dflash_core.backends.cuda.projection import Projection
from dflash_core.backends.cuda.repack import ROWS, groups_of
from dflash_core.backends.cuda.state import PASS_ROWS
from dflash_core.backends.cuda.upload import Upload
from dflash_core.errors import cpu_only

EMBED_THREADS = 256
TOKENS = "token_embd.weight"
NO_MASK = -1


class Embedding:
    """token_embd as in the file, or a similar matrix. `on_host`: in host memory; the kernel reads the few rows that
    a pass needs over the bus, so that a step stays one CUDA graph."""

    def __init__(self, upload: Upload, width: int, name: str = TOKENS, *, on_host: bool = False) -> None:
        self.blocks: Tensor | HasAddress
        self.width = width
        self.type, self.blocks = upload.on_host(name) if on_host else upload.raw(name)

    def launch(
        self,
        h: Tensor,
        tokens: Tensor | HasAddress,
        count: At,
        rows: int,
        node0: int = 0,
        mask_token: int = NO_MASK,
        scale: float = 1.0,
    ) -> Launch:
        """Embeddings of `tokens` times `scale` into rows of `h`; with a mask token, all rows but the first embed it."""
        scaled = {"SCALE": scale} if scale != 1 else {}
        return Launch(
            "embed.cu", "embed", {"FORMAT": self.type, "WIDTH": self.width, **scaled},
            (ceil_div(self.width, EMBED_THREADS), rows), EMBED_THREADS,
            [h, self.blocks, tokens, mask_token, count, node0],
        )  # fmt: skip


TABLE = "per_layer_token_embd.weight"
GIVEN_WARPS = 4  # as in kernels/per_layer.cu


class PerLayerInputs:
    """A table of tokens, in the file's own block format, and a projection: see `ModelSpec`. `on_host`: the table stays
    in host memory, as the token embedding may."""

    def __init__(
        self, device: Device, upload: Upload, spec: ModelSpec, activations: Activations, *, on_host: bool
    ) -> None:
        self.width, self.layers, self.hidden = spec.per_layer_input, spec.block_count, spec.embedding_length
        if self.width % ROWS:
            raise cpu_only(f"per-layer inputs of {self.width:,} numbers, expected a multiple of {ROWS} on a card")
        self.table: Tensor | HasAddress
        self.type, self.table = upload.on_host(TABLE) if on_host else upload.raw(TABLE)
        self.projection = Projection(device, [upload.matrix("per_layer_model_proj.weight")], activations.inputs)
        self.norm, self.eps = upload.vector("per_layer_proj_norm.weight"), spec.rms_eps

    @property
    def piece(self) -> TensorSpec:
        """Memory for what the rows of a pass are given."""
        return (PASS_ROWS, self.layers * self.width), torch.float32

    def defines(self, split_k: int) -> dict[str, object]:
        """Of kernels/per_layer.cu."""
        sizes = {"LAYERS": self.layers, "WIDTH": self.width, "HIDDEN": self.hidden, "SPLIT_K": split_k}
        return {"FORMAT": self.type, **sizes}

    def launches(self, scope: Pass) -> Iterator[Launch]:
        """From the activations of the scaled embeddings to scope.given."""
        buffers, projection, rows = scope.buffers, self.projection, scope.rows
        assert scope.given is not None
        yield from projection.launches(buffers.acts, buffers.wide, rows)
        yield Launch(
            "per_layer.cu", "per_layer_given", self.defines(projection.split_k),
            (ceil_div(self.layers, GIVEN_WARPS), rows), WARP * GIVEN_WARPS,
            [buffers.wide, rows, projection.width, self.table, scope.state.at("token"), self.norm, np.float32(self.eps),
             scope.given, scope.count, scope.node0],
        )  # fmt: skip


class PerLayerInput(FeedForward):
    """Of layer `index`, from what `given` has for it."""

    inputs: Projection
    out: Projection

    def __init__(
        self, device: Device, upload: Upload, prefix: str, activations: Activations, given: PerLayerInputs, index: int
    ) -> None:
        self.given, self.index, self.width = given, index, given.width
        self.inputs = Projection(device, [upload.matrix(prefix + "inp_gate.weight")], activations.inputs)
        self.out = Projection(device, [upload.matrix(prefix + "proj.weight")], activations.outputs)

    def launches(self, scope: Pass) -> Iterator[Launch]:
        buffers, rows = scope.buffers, scope.rows
        assert scope.given is not None
        yield from self.inputs.launches(buffers.acts, buffers.wide, rows)
        yield Launch(
            "per_layer.cu", "per_layer_gate", {**self.given.defines(self.inputs.split_k), **self.out.forms},
            (groups_of(self.width), rows), WARP,
            [buffers.wide, rows, self.inputs.width, scope.given, self.index, *self.out.act_args(buffers.acts),
             scope.count, scope.node0],
        )  # fmt: skip
        yield from self.out.launches(buffers.acts, buffers.narrow, rows)

    def chunk_buffers(self, rows: int) -> Sequence[Sequence[TensorSpec]]:
        return ((((rows, self.width), torch.float32), ((rows, self.width), torch.float16)),)

    def chunk(self, chunk: Chunk) -> ChunkRun:
        given, products, width = self.given, chunk.products, self.width
        projected, gate = chunk.arena.carve(*self.chunk_buffers(chunk.rows)[0])
        own = range(self.index * width, (self.index + 1) * width)
        of_token = products.parts(given.projection.matrices[0], rows=own)
        gates, down = (products.parts(one.matrices[0]) for one in (self.inputs, self.out))
        args: list[Argument] = [
            chunk.count, projected, given.table, chunk.tokens, given.norm, np.float32(given.eps), self.index,
            gate,
        ]  # fmt: skip
        grid = ceil_div(chunk.rows, GIVEN_WARPS)
        give = chunk.ops.add(Launch("per_layer.cu", "rows_per_layer", given.defines(1), grid, WARP * GIVEN_WARPS, args))

        def run(n: int, length: int) -> None:
            # Rows that no norm has scaled have headroom.
            products.multiply(chunk.embedded[:n], of_token, projected[:n], scale=1 / HEADROOM)
            products.multiply(chunk.x[:n], gates, gate[:n], scale=1 / HEADROOM)
            give()
            products.multiply(gate[:n], down, chunk.out[:n], scale=1 / HEADROOM, add=True)

        return run
