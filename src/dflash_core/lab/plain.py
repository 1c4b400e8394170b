"""The speed of plain decoding on this machine: the baseline for speeds with drafts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING

from dflash_core.events import StepEvent
from dflash_core.knobs import SPEC
from dflash_core.lab.progress import ExperimentProgress

if TYPE_CHECKING:
    from dflash_core.record import TurnRecord
    from dflash_core.runner import Runner  # brings numpy, which the app imports after its first frame

WARM_STEPS, TIMED_STEPS = 4, 64
FEWEST_STEPS = 16


@dataclass(frozen=True, slots=True)
class PlainSpeed:
    """Tokens per second of steps without drafts: the number of steps, the positions before them, the time (ISO 8601,
    UTC)."""

    tokens_per_second: float
    steps: int
    positions: int
    taken: str
    how: str


class PlainRun:
    """Decodes plainly after the prompt of a turn and discards the tokens. Iterate; `speed` is set at the end.

    Raises what the engine raises.
    """

    def __init__(self, engine: Runner, record: TurnRecord) -> None:
        self._engine, self._record = engine, record
        self.speed: PlainSpeed | None = None

    def __iter__(self) -> Iterator[ExperimentProgress]:
        ids, steps = self._record.start.prompt_ids, list[StepEvent]()
        longest = int(SPEC["max_tokens"].maximum)
        knobs = self._record.knobs.replace(mode="ar", ignore_eos=True, max_tokens=longest)
        with self._engine.scratch():
            run = self._engine.generate(ids, knobs, sinks=self._record.start.sinks)
            events = (event for event in run if isinstance(event, StepEvent))
            for done, step in enumerate(islice(events, WARM_STEPS + TIMED_STEPS)):
                yield ExperimentProgress(done, WARM_STEPS + TIMED_STEPS, None, "decoding plainly")
                if done >= WARM_STEPS:
                    steps.append(step)
        self.speed = plain_speed(steps, len(ids), "timed separately")


def plain_speed(steps: list[StepEvent], positions: int, how: str) -> PlainSpeed | None:
    """The speed of `steps`, by their wall time; None for too few steps, or if no time was measured."""
    seconds = sum(step.stages.total for step in steps) / 1e3
    if len(steps) < FEWEST_STEPS or seconds <= 0:
        return None
    taken = datetime.now(UTC).isoformat(timespec="seconds")
    return PlainSpeed(sum(len(step.tokens) for step in steps) / seconds, len(steps), positions, taken, how)


def of_turn(record: TurnRecord) -> PlainSpeed | None:
    """The speed of a turn that ran without drafts from its first step to its last; None for any other."""
    steps = list(record.steps)
    if any(step.mode != "ar" for step in steps):
        return None
    speed = plain_speed(steps, len(record.start.prompt_ids), "a plain turn")
    return speed and PlainSpeed(speed.tokens_per_second, speed.steps, speed.positions, record.start.created, speed.how)
