"""Long prompts: runs the target layer by layer over thousands of rows, with the library's products and a chunked
recurrence.

Weights are converted to f16 in parts, so that memory stays bounded; sums and the residual stream are f32. The result is
that of passes up to rounding (docs/architecture.md, "A kept prefix"): keys, values, states and the drafter's context,
with nothing pending.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dflash_core.arch.spec import EMBEDDING
from dflash_core.attention_window import EVERYTHING, AttentionWindow
from dflash_core.backends.base import PrefillCancelled
from dflash_core.backends.cuda.chunk import Chunk
from dflash_core.backends.cuda.device_state import DeviceState
from dflash_core.backends.cuda.drafters.base import ChunkDrafter, DeviceDrafter
from dflash_core.backends.cuda.launch import Launch
from dflash_core.backends.cuda.layers.base import ChunkRun
from dflash_core.backends.cuda.layers.norm import chunk_add, chunk_norm
from dflash_core.backends.cuda.parts_ahead import PartsAhead
from dflash_core.backends.cuda.products import Op
from dflash_core.backends.cuda.sequence import SequenceMemory
from dflash_core.backends.cuda.target_model import DeviceTarget

# Shorter prompts are run in passes of 24 rows. On an H200 seven passes take 51 ms, and eight take 58 ms; converting all
# weights to f16 and multiplying 192 rows by them takes 51 ms. Cards that were found to be otherwise: prompts.py.
MIN_ROWS = 169

Cancelled = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class ChunkLayer:
    """One layer of the target over a chunk's rows. add_mixer, add_ffn: what each gave, where `Chunk.out` has it."""

    norm: Op
    mixer: ChunkRun
    add_mixer: Op | None
    ffn_norm: Op
    ffn: ChunkRun
    add_ffn: Op | None

    def run(self, n: int, length: int) -> None:
        """Of `n` rows after `length` positions."""
        self.norm()
        self.mixer(n, length)
        if self.add_mixer is not None:
            self.add_mixer()
        self.ffn_norm()
        self.ffn(n, length)
        if self.add_ffn is not None:
            self.add_ffn()


class ChunkPass:
    """Runs up to `chunk.rows` tokens after the committed state; no commit may be pending."""

    def __init__(
        self,
        target: DeviceTarget,
        memory: SequenceMemory,
        chunk: Chunk,
        state: DeviceState,
        drafter: DeviceDrafter | None = None,
    ) -> None:
        self.memory, self.chunk, self.state = memory, chunk, state
        self.device, eps = target.device, target.spec.rms_eps
        scale = target.spec.embedding_scale
        embed = target.embedding.launch(chunk.h, chunk.tokens, chunk.count, chunk.rows, scale=scale)
        self.embed = chunk.ops.add(embed)

        def added(weight: Tensor | None, factor: Tensor | None = None) -> Op | None:
            if chunk.out is chunk.h:
                return None
            return chunk_add(chunk.ops, chunk.count, chunk.h, chunk.out, weight, eps, factor)

        self.layers = [
            ChunkLayer(
                chunk_norm(chunk.ops, chunk.count, chunk.h, block.attn_norm, eps, chunk.x),
                memory.mixers[block.group].layer(block.place).chunk(chunk),
                added(block.post_attn_norm),
                chunk_norm(
                    chunk.ops, chunk.count, chunk.h, block.ffn_norm, eps, chunk.x, block.ffn.chunk_normed(chunk)
                ),
                block.ffn.chunk(chunk),
                added(block.post_ffn_norm, block.output_scale),
            )
            for block in target.blk
        ]
        self.drafter: ChunkDrafter | None = drafter.chunk(chunk) if drafter else None

    def launches(self) -> list[Launch]:
        """Every launch of a chunk, for compiling."""
        return [op.launch for op in self.chunk.ops.added]

    def warm_up(self) -> None:
        """Bind all launches and initialise the library, so that the first prompt need not wait for that."""
        for op in self.chunk.ops.added:
            op.bind()
        x, w = self.chunk.x[:64], self.chunk.weights[: 64 * self.chunk.x.shape[1]].view(64, -1)
        (out,) = self.chunk.arena.carve(((len(x), 64), x.dtype))
        self.device.multiply(x, w, out)
        self.device.multiply(x, w, self.chunk.h[:64, :64], add=True)

    def run(
        self,
        tokens: Sequence[int],
        cancelled: Cancelled | None = None,
        window: AttentionWindow = EVERYTHING,
    ) -> Tensor:
        """Run and commit `tokens`; returns the residual stream (hidden,) of the last one after the last layer.

        `window`: what full-attention layers see. Raises PrefillCancelled if `cancelled` returns true between two
        layers, and torch.OutOfMemoryError if the library gets no memory; the state is then as before.
        """
        n, state = len(tokens), self.state.host
        length = int(state["length"])
        assert not state["pending"], "a commit is pending, so the states are not up to date"
        assert length + n <= self.memory.slots, "more positions than the sequence's memory holds"
        self.chunk.begin(tokens, length, window)
        if length:
            for memory in self.memory.mixers:
                memory.keep()
        try:
            with self.memory.workspace():
                self._layers(n, length, cancelled)
        except (PrefillCancelled, torch.OutOfMemoryError):
            for memory in self.memory.mixers:
                if length:
                    memory.undo()
                else:
                    memory.restore(None)
            raise
        state["length"] = length + n
        if self.drafter is not None:
            self.drafter.update_cache(n)
        return self.chunk.h[n - 1]

    def _layers(self, n: int, length: int, cancelled: Cancelled | None) -> None:
        self.embed()
        if self.drafter is not None:
            self.drafter.capture(EMBEDDING, n)
        ahead = PartsAhead(self.device, cancelled)
        for index, layer in enumerate(self.layers):
            if ahead.given_up():
                raise PrefillCancelled
            layer.run(n, length)
            if self.drafter is not None:
                self.drafter.capture(index, n)
