"""Passes over the new tokens of a sequence that is still arriving take turns: all of them go through a part of the
layers before the first goes on to the next part, so that what they take hides behind the copies of the parts to come.

A layer finds what it finds where passes come one after the other: its own memory goes from pass to pass as ever, and a
chain's keys and values lie where its commit would move them. A pass's step state, and what it hands from one layer to
the next, are kept between its turns in room that only chunks of prompts use.
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
    """Of passes over these chains of tokens, none longer than the first, the first `count`: as many as there is room
    for."""

    def __init__(self, memory: SequenceMemory, passes: Sequence[Sequence[int]]) -> None:
        rows, buffers, self._state = len(passes[0]), memory.buffers, memory.state
        self._captured = memory.captured.rows[:rows]
        partials = buffers.narrow[: len(buffers.narrow) // PASS_ROWS * rows]
        handed = [tensor for mixer in memory.mixers for tensor in mixer.handed]
        # Where launches have it; in `_kept` the same of each pass.
        self._live = (self._state.bytes, self._captured, buffers.h[:rows], partials, *handed)
        wanted = [(tuple(tensor.shape), tensor.dtype) for tensor in self._live]
        size = Arena.need(wanted)
        self.count = min(len(passes), len(memory.idle.bytes) // size)
        self._kept = [tuple(Arena(memory.idle.bytes[at * size :]).carve(*wanted)) for at in range(self.count)]
        for kept, state in zip(self._kept, self._state.chains(passes)):
            _copy(self._live, kept)
            send(state, kept[0])

    def run(self, arriving: Arrival, passes: Sequence[Sequence[Run]]) -> None:
        """Run them, but for their commits; each of `passes` is in as many parts as the layers arrive in."""
        if not self.count:
            return
        arriving.fresh = False
        for part, turns in enumerate(zip(*passes, strict=True)):
            arriving.part(part)
            for kept, run in zip(self._kept, turns):
                # Between turns there are copies: gdn_recurrence reads a state before it waits for the launch before it.
                _copy(kept, self._live)
                run()
                _copy(self._live, kept)
        arriving.states()  # commits come next

    def finish(self, at: int) -> None:
        """Where the n-th of them is planted again: leave what its commit needs."""
        self._captured.copy_(self._kept[at][1])
        self._state.host["pending"] = 0  # the pass has brought the states up to date


def _copy(tensors: Sequence[Tensor], to: Sequence[Tensor]) -> None:
    for tensor, there in zip(tensors, to, strict=True):
        there.copy_(tensor)
