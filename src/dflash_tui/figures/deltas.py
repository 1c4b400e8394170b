"""What another setting brought: a turn beside the last one that ran differently, and a turn beside itself where its
knobs were changed on the way."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dflash_core.events import StepEvent
from dflash_core.knobs import SPEC, Knobs
from dflash_core.record import TurnRecord
from dflash_tui.text.bars import speed

NAMED = 3  # knobs that are told by name; more are counted
UNLIKE = ("seed", "max_tokens", "ignore_eos")  # what ends or draws an answer says little of its speed


@dataclass(frozen=True, slots=True)
class Stretch:
    """Steps in a row that ran with the same knobs. `first` counts from 1; `seconds` from step to step."""

    knobs: Knobs
    first: int
    steps: int
    tokens: int
    seconds: float

    @property
    def acceptance_length(self) -> float:
        return self.tokens / self.steps

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Measured:
    """What one setting gave. `models` are the file names of target and drafter."""

    knobs: Knobs
    tokens_per_second: float
    acceptance_length: float
    models: tuple[str, str]


def stretches(record: TurnRecord) -> tuple[Stretch, ...]:
    """A turn cut where its knobs were changed; one stretch where they were not."""
    timed = [
        (piece.event, piece.at - before.at)
        for before, piece in itertools.pairwise(record.pieces)
        if isinstance(piece.event, StepEvent)
    ]
    found, first = [], 1
    for knobs, group in itertools.groupby(timed, key=lambda pair: pair[0].knobs):
        steps = list(group)
        tokens, seconds = sum(len(step.tokens) for step, _ in steps), sum(took for _, took in steps)
        found.append(Stretch(knobs, first, len(steps), tokens, seconds))
        first += len(steps)
    return tuple(found)


def measured(record: TurnRecord) -> Measured | None:
    """A turn as a measure of its setting; None where it was changed on the way, or took no step."""
    if record.report is None or len(stretches(record)) != 1:
        return None
    stats, models = record.report.stats, (record.start.target, record.start.draft)
    return Measured(record.steps[0].knobs, stats.tokens_per_second, stats.acceptance_length, models)


def against_earlier(mine: Measured, earlier: Iterable[Measured]) -> str:
    """A line that compares a turn with the first of `earlier` where the same models ran otherwise; "" without one."""
    for other in earlier:
        named = differing(other.knobs, mine.knobs)
        if named and other.models == mine.models:
            return _compared(other, mine, f"against {_values(named, other.knobs)}")
    return ""


def on_the_way(record: TurnRecord) -> list[str]:
    """A line for each change of knobs in the middle of a turn."""
    lines = []
    for before, after in itertools.pairwise(stretches(record)):
        named = differing(before.knobs, after.knobs)
        lines.append(_compared(before, after, f"since step {after.first}, with {_values(named, after.knobs)}"))
    return lines


def differing(a: Knobs, b: Knobs) -> list[str]:
    """The knobs that matter for speed and are not the same in both."""
    return [name for name in SPEC if name not in UNLIKE and getattr(a, name) != getattr(b, name)]


def _compared(old: Measured | Stretch, new: Measured | Stretch, than: str) -> str:
    faster = _signed(new.tokens_per_second - old.tokens_per_second, speed)
    longer = _signed(new.acceptance_length - old.acceptance_length, "{:.2f}".format)
    return f"{faster} tok/s, accept {longer} {than}"


def _signed(value: float, show: Callable[[float], str]) -> str:
    shown = show(abs(value))
    return ("+" if value >= 0 else "−") + shown


def _values(names: Iterable[str], knobs: Knobs) -> str:
    names = list(names)
    shown = [f"{name} {SPEC[name].show(getattr(knobs, name))}" for name in names[:NAMED]]
    more = len(names) - NAMED
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")
