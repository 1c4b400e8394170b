"""The speed of plain decoding on this machine: the baseline for speeds with drafts."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dflash_core.events import StepEvent
    from dflash_core.lab.results import Result
    from dflash_core.record import TurnRecord

MIN_STEPS = 16


@dataclass(frozen=True, slots=True)
class PlainSpeed:
    """Tokens per second of steps without drafts: the number of steps, the positions before them, the time (ISO 8601,
    UTC)."""

    tokens_per_second: float
    steps: int
    positions: int
    taken: str
    how: str


def of_result(result: Result, how: str) -> PlainSpeed | None:
    """The speed of an experiment's plain arm, the median of its runs; None without one, or for too few steps."""
    its = [trial.report for trial in result.trials if result.arms[trial.setting].knobs.mode == "plain"]
    steps = sum(report.stats.steps for report in its)
    if steps < MIN_STEPS:
        return None
    tok_s = statistics.median(report.stats.tokens_per_second for report in its)
    positions = round(statistics.median(report.stats.prompt_tokens for report in its))
    return PlainSpeed(tok_s, steps, positions, datetime.now(UTC).isoformat(timespec="seconds"), how)


def plain_speed(steps: list[StepEvent], positions: int, how: str) -> PlainSpeed | None:
    """The speed of `steps`, by their wall time; None for too few steps, or if no time was measured."""
    seconds = sum(step.stages.total for step in steps) / 1e3
    if len(steps) < MIN_STEPS or seconds <= 0:
        return None
    taken = datetime.now(UTC).isoformat(timespec="seconds")
    return PlainSpeed(sum(len(step.tokens) for step in steps) / seconds, len(steps), positions, taken, how)


def of_turn(record: TurnRecord) -> PlainSpeed | None:
    """The speed of a turn that ran without drafts from its first step to its last; None for any other."""
    steps = list(record.steps)
    if any(step.mode != "plain" for step in steps):
        return None
    speed = plain_speed(steps, len(record.start.prompt_ids), "a plain turn")
    return speed and PlainSpeed(speed.tokens_per_second, speed.steps, speed.positions, record.start.created, speed.how)
