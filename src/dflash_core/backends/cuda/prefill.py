"""Long prompts: runs the target layer by layer over thousands of rows, with the library's products and a chunked
recurrence.

Weights are converted to f16 in parts, so that memory stays bounded; sums and the residual stream are f32. The result is
that of passes up to rounding (docs/architecture.md, "A reused prefix"): keys, values, states and the drafter's context,
with nothing pending.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from dflash_core.arch.spec import EMBEDDING
from dflash_core.attention_window import EVERYTHING, AttentionWindow
from dflash_core.backends.base import PrefillCancelled
from dflash_core.backends.cuda.chunk import Chunk
from dflash_core.backends.cuda.launch import Device, Launch, Run
from dflash_core.backends.cuda.layers.base import ChunkRun
from dflash_core.backends.cuda.layers.norm import chunk_add, chunk_norm
from dflash_core.backends.cuda.products import Op
from dflash_core.backends.cuda.sequence import SequenceMemory
from dflash_core.backends.cuda.target_model import Block, DeviceTarget

# Shorter prompts are run in passes of 24 rows. On an H200 seven passes take 51 ms, and eight take 58 ms; converting all
# weights to f16 and multiplying 192 rows by them takes 51 ms. Cards that were found to be otherwise: timings.py.
MIN_ROWS = 169

Cancelled = Callable[[], bool]


class ChunkPass:
    """Runs up to `chunk.rows` tokens after the committed state; no commit may be pending."""

    def __init__(self, target: DeviceTarget, memory: SequenceMemory, chunk: Chunk) -> None:
        self.memory, self.chunk, self.state = memory, chunk, memory.state
        self.device, eps = target.device, target.spec.rms_eps
        scale = target.spec.embedding_scale
        embed = target.embedding.launch(chunk.h, chunk.tokens, chunk.count, chunk.rows, scale=scale)
        self.embed = [chunk.ops.add(embed)]
        if target.per_layer is not None:
            self.embed.append(chunk_norm(chunk.ops, chunk.count, chunk.h, None, eps, chunk.embedded))

        self.layers = [[*self._steps(block, eps)] for block in target.blk]
        self.drafter = memory.drafter.chunk(chunk) if memory.drafter else None

    def _steps(self, block: Block, eps: float) -> Iterator[ChunkRun]:
        """What runs of one layer, in order."""
        chunk, ops, count = self.chunk, self.chunk.ops, self.chunk.count

        def step(op: Op) -> ChunkRun:
            return lambda n, length: op()

        for residual in block.residuals:
            several = len(residual.branches) > 1
            into, factor = (chunk.side, None) if several else (chunk.h, residual.factor)
            for branch in residual.branches:
                part = branch.ffn or self.memory.mixers[block.group].layer(block.place)
                rows = part.chunk_normed(chunk)
                yield step(chunk_norm(ops, count, chunk.h, branch.norm, eps, chunk.x, rows, part.normed_by))
                yield part.chunk(chunk)
                if chunk.out is not chunk.h:
                    own = branch.post_norm if several or residual.post_norm is None else residual.post_norm
                    yield step(chunk_add(ops, count, into, chunk.out, own, eps, factor))
            if several:
                yield step(chunk_add(ops, count, chunk.h, chunk.side, residual.post_norm, eps, residual.factor))

    def launches(self) -> list[Launch]:
        """Every launch of a chunk, for compiling."""
        return [op.launch for op in self.chunk.ops.added]

    def warm_up(self) -> None:
        """Bind all launches and initialise the library, so that the first prompt need not wait for that."""
        for op in self.chunk.ops.added:
            op.bind()
        x, hidden = self.chunk.x[:64], self.chunk.x.shape[1]
        columns = min(64, hidden)
        w = self.chunk.weights[: columns * hidden].view(columns, hidden)
        (out,) = self.chunk.arena.carve(((len(x), columns), x.dtype))
        self.device.multiply(x, w, out)
        self.device.multiply(x, w, self.chunk.h[:64, :columns], add=True)

    def run(
        self, tokens: Sequence[int], cancelled: Cancelled | None = None, window: AttentionWindow = EVERYTHING
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
                memory.save()
        try:
            with self.memory.workspace():
                self._layers(n, length, cancelled)
        except (PrefillCancelled, torch.OutOfMemoryError):
            for memory in self.memory.mixers:
                if length:
                    memory.undo(length + n)
                else:
                    memory.restore(None)
            raise
        state["length"] = length + n
        if self.drafter is not None:
            self.state.push()
            self.drafter.update_cache(n)
            state["draft_length"] = state["length"]
        return self.chunk.h[n - 1]

    def _layers(self, n: int, length: int, cancelled: Cancelled | None) -> None:
        for embed in self.embed:
            embed()
        if self.drafter is not None:
            self.drafter.capture(EMBEDDING, n)
        ahead = PartsAhead(self.device, cancelled)
        for index, layer in enumerate(self.layers):
            if ahead.given_up():
                raise PrefillCancelled
            for step in layer:
                step(n, length)
            if self.drafter is not None:
                self.drafter.capture(index, n)


AHEAD = 2  # parts that are queued while the host waits for an earlier one


class PartsAhead:
    """Limits the lead, so that `cancelled`, if there is one, is called while there is still something to leave out."""

    def __init__(self, device: Device, cancelled: Callable[[], bool] | None) -> None:
        self._device, self._cancelled = device, cancelled
        self._marks: deque[Run] = deque()

    def given_up(self) -> bool:
        """Whether the rest of the prompt is left out. To be called before a part is queued."""
        if self._cancelled is None:
            return False
        self._marks.append(self._device.mark())
        if len(self._marks) > AHEAD:
            self._marks.popleft()()
        return self._cancelled()
