"""An emulated device whose drafter knows the answer: long accepted paths, off the spine too, in whole session steps.

Random golden drafters are never accepted; see support.planted for the same on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dflash_core.backends.cuda.launch import Launch, Run
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.state import MAX_WIDTH, STEP_STATE
from dflash_core.progress import Progress
from support.device_pairs import CONTEXT, Pair, pair_on
from support.emulated_device import EmulatedDevice

GOOD, BAD = -0.1, -3.0  # log-probabilities of a right token and of the best wrong one


class PlantedDevice(EmulatedDevice):
    """After every draft, the tokens of `answer` (which begins with the first drawn one) are put among the candidates.

    `ranks[d]`: the rank of the right token at depth d, 0 the best; below the last of them the drafts are wrong.
    """

    def __init__(self, answer: Sequence[int], ranks: Sequence[int]) -> None:
        super().__init__()
        self.answer, self.ranks = list(answer), list(ranks)
        self.session: CudaSession | None = None

    def bind(self, launches: Sequence[Launch], progress: Progress | None = None) -> Run:
        parts: list[Run] = []
        begin = 0
        for end, launch in enumerate(launches, 1):
            if launch.name == "candidates":
                parts += [super().bind(launches[begin:end]), self._plant]
                begin = end
        parts.append(super().bind(launches[begin:]))

        def run() -> None:
            for part in parts:
                part()

        return run

    def _plant(self) -> None:
        assert self.session is not None
        state = np.frombuffer(self.session.state.bytes.numpy(), STEP_STATE)[0]
        at = int(state["answered"])
        for depth, rank in enumerate(self.ranks[: int(state["draft_depth"])]):
            if at + depth >= len(self.answer):
                break
            row, tokens = state["candidate_log_prob"][depth], state["candidate"][depth]
            row[:] = BAD - np.arange(MAX_WIDTH)
            row[: rank + 1] = GOOD - 0.01 * np.arange(rank + 1)
            tokens[:] = [(self.answer[at + depth] + 1 + other) % 700 for other in range(MAX_WIDTH)]
            tokens[rank] = self.answer[at + depth]


def planted(
    file: str, answer: Sequence[int], ranks: Sequence[int], context: int = CONTEXT, half: bool = True
) -> tuple[CudaSession, Pair]:
    """A session of a golden pair on such a device. `half`: activations f16, not int8."""
    device = PlantedDevice(answer, ranks)
    pair = pair_on(device, file, half)
    device.session, _ = pair.sessions(context)
    return device.session, pair
