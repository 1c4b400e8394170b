"""Interleaves the passes over the new tokens of a sequence that is still being copied to the card.

All passes run through one part of the layers before any pass continues with the next part. So passes overlap with the
copies of the later parts.

For a layer, nothing differs from passes that run one after the other. Its own memory goes from pass to pass, and a
chain's keys and values are already where its commit would move them. Between the parts, a pass's step state and what
its layers leave for the next layer are saved in memory that otherwise only chunks of prompts use.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dflash_core.backends.cuda.arrival import Arrival
from dflash_core.backends.cuda.launch import Run
from dflash_core.backends.cuda.products import Arena
from dflash_core.backends.cuda.sending import send
from dflash_core.backends.cuda.sequence import SequenceMemory
from dflash_core.backends.cuda.state import PASS_ROWS


class Turns:
    """The first `count` of the passes over these chains of tokens: as many as fit in memory. No chain may be longer
    than the first."""

    def __init__(self, memory: SequenceMemory, passes: Sequence[Sequence[int]]) -> None:
        rows, buffers, self._state = len(passes[0]), memory.buffers, memory.state
        self._captured = memory.captured.rows[:rows]
        partials = buffers.narrow[: len(buffers.narrow) // PASS_ROWS * rows]
        handed = [tensor for mixer in memory.mixers for tensor in mixer.handed]
        # The tensors that launches use; `_kept` has a copy of them per pass.
        self._live = (self._state.bytes, self._captured, buffers.h[:rows], partials, *handed)
        wanted = [(tuple(tensor.shape), tensor.dtype) for tensor in self._live]
        size = Arena.need(wanted)
        self.count = min(len(passes), len(memory.idle.bytes) // size)
        self._kept = [tuple(Arena(memory.idle.bytes[at * size :]).carve(*wanted)) for at in range(self.count)]
        for kept, state in zip(self._kept, self._state.chains(passes)):
            _copy(self._live, kept)
            send(state, kept[0])

    def run(self, arriving: Arrival, passes: Sequence[Sequence[Run]]) -> None:
        """Run the passes without their commits; each is split into the parts in which the layers arrive."""
        if not self.count:
            return
        arriving.fresh = False
        for part, turns in enumerate(zip(*passes, strict=True)):
            arriving.part(part)
            for kept, run in zip(self._kept, turns):
                # The copies also separate the passes: gdn_recurrence reads a state before it waits for the previous
                # launch.
                _copy(kept, self._live)
                run()
                _copy(self._live, kept)
        arriving.states()  # the commits that follow need them

    def finish(self, at: int) -> None:
        """Restore what the commit of pass `at` needs, after its chain was planted again."""
        self._captured.copy_(self._kept[at][1])
        self._state.host["pending"] = 0  # the pass has updated the states


def _copy(tensors: Sequence[Tensor], to: Sequence[Tensor]) -> None:
    for tensor, there in zip(tensors, to, strict=True):
        there.copy_(tensor)
