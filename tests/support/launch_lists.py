"""Every launch list of the CUDA backend as text: graphs of steps, and what the calls of a session launch.

`PYTHONPATH=tests python -m support.launch_lists NAME..` prints lists in full, for comparing two revisions.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from dflash_core.backends.cuda.activations import CHOICES
from dflash_core.backends.cuda.drafters.base import on_device
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.state import WIDTHS
from dflash_core.backends.cuda.step_graphs import StepKind
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.config import DraftConfig
from dflash_core.knobs import Knobs
from support.kernel_variants import (
    CARDS,
    Pair,
    attention_only,
    demo,
    demo_mtp,
    experts,
    large,
    large_dflash2,
    large_dspark,
    large_mtp,
    small_dspark,
    tiny,
    tiny_experts,
)
from support.recording_device import NamedUpload, RecordingDevice

CONTEXT = 320
MASK = 5  # in every list, whatever the drafter's own is
SEVERAL = ((64, 8), (64, 40), (64, 64, 1), (64, 64, 64, 64))  # widths of trees of more than one pass


@dataclass(frozen=True)
class Case:
    """A pair on a card."""

    name: str
    pair: Callable[[], Pair]
    arch: str
    half: bool = False
    drafted: bool = True


CASES = (
    Case("tiny", tiny, "sm_90a"),
    Case("tiny-half", tiny, "sm_90a", half=True),
    Case("tiny-alone", tiny, "sm_90a", drafted=False),
    Case("demo", demo, "sm_90a"),
    Case("demo-half", demo, "sm_90a", half=True),
    Case("demo-sm_86", demo, "sm_86"),
    Case("experts", tiny_experts, "sm_90a"),
    Case("35b-a3b", experts, "sm_90a"),
    Case("attention-only", attention_only, "sm_90a"),
    Case("27b", large, "sm_90a"),
    Case("27b-half", large, "sm_90a", half=True),
    Case("27b-alone", large, "sm_90a", drafted=False),
    Case("27b-sm_89", large, "sm_89"),
    Case("demo-mtp", demo_mtp, "sm_90a"),
    Case("27b-mtp", large_mtp, "sm_90a"),
    Case("27b-dflash2", large_dflash2, "sm_90a"),
    Case("27b-dspark", large_dspark, "sm_90a"),
    Case("small-dspark", small_dspark, "sm_90a"),
)


class Recorded:
    """A session of a case, and its launches as lines."""

    def __init__(self, case: Case) -> None:
        pair = case.pair()
        self.case, self.device = case, RecordingDevice(CARDS[case.arch])
        chosen = CHOICES["f16" if case.half else "int8"]
        target = DeviceTarget(self.device, NamedUpload(pair.target, self.device), pair.target_config, chosen)
        draft = None
        if case.drafted:
            config = pair.draft_config
            if isinstance(config, DraftConfig):
                config = replace(config, mask_token_id=MASK)
            draft = on_device(config, NamedUpload(pair.draft, self.device), target, chosen)
        self.session = CudaSession(target, draft, () if draft else (0, 2), context=CONTEXT)

    def lists(self) -> Iterator[tuple[str, list[str]]]:
        yield from self._steps()
        yield from self._calls()

    def _steps(self) -> Iterator[tuple[str, list[str]]]:
        steps = self.session.steps
        for several in False, True:
            for widths in SEVERAL if several else [(width,) for width in WIDTHS]:
                for drawn in "", " sampled", " listed":
                    for drafts in (False, True) if self.case.drafted and widths == (1,) else (self.case.drafted,):
                        kind = StepKind(widths, drafts=drafts, sampled=bool(drawn), listed=drawn == " listed")
                        name = f"{'draft ' if drafts else ''}{'+'.join(map(str, widths))}"
                        yield f"step {name}{drawn}", self.device.lines(steps.launches(kind))
        if self.case.drafted:
            kind = StepKind.holding(22, Knobs(), self.session.head.vocab, drafts=self.session.device_block > 0)
            steps.force([[1, 2], [1]])
            yield "step forced", self.device.lines(steps.launches(kind))
            steps.force(None)
            within = replace(kind, sampled=True)
            for part, launches in zip(("pass", "draws"), steps.constrained_launches(within)):
                yield f"step within a grammar, {part}", self.device.lines(launches)
            reported = replace(within, listed=True, top=5)
            yield "step with log-probabilities", self.device.lines(steps.launches(reported))
            for part, launches in zip(("pass", "draws"), steps.constrained_launches(reported)):
                yield f"step within a grammar with log-probabilities, {part}", self.device.lines(launches)
            yield "drain", self._ran(lambda: steps.draining()())

    def _calls(self) -> Iterator[tuple[str, list[str]]]:
        session = self.session
        yield "prefill 20", self._ran(lambda: session.prefill(range(20)))
        yield "prefill 81", self._ran(lambda: session.prefill(range(81)))
        yield "verify 5", self._ran(lambda: session.verify([1, 2, 3, 4, 5], [-1, 0, 0, 1, 1]))
        yield "commit 2", self._ran(lambda: session.commit([0, 2]))
        if self.case.drafted:
            yield "draft", self._ran(lambda: session.draft(3, 0))
        kept = []
        yield "checkpoint", self._ran(lambda: kept.append(session.checkpoint()))
        yield "restore", self._ran(lambda: session.restore(kept[0]))
        yield "restore none", self._ran(lambda: session.restore(None))
        yield "prefill 240", self._ran(lambda: session.prefill(range(240)))
        yield "verify 70", self._ran(lambda: session.verify(range(70), range(-1, 69)))
        yield "commit 70", self._ran(lambda: session.commit(range(70)))

    def _ran(self, work: Callable[[], object]) -> list[str]:
        self.device.log.clear()
        work()
        return self.device.lines(self.device.log)


def digest(lines: list[str]) -> str:
    """The number of launches, and a hash of their text."""
    return f"{len(lines)} {hashlib.sha256(chr(10).join(lines).encode()).hexdigest()[:16]}"


if __name__ == "__main__":
    for case in CASES:
        asked = [name.split("/", 1)[1] for name in sys.argv[1:] if name.split("/", 1)[0] == case.name]
        for name, lines in Recorded(case).lists() if asked else ():
            if name in asked:
                print(f"# {case.name}/{name}", *lines, sep="\n")  # noqa: T201
