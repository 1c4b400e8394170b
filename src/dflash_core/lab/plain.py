"""The speed of plain decoding on this machine: the baseline for speeds with drafts."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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


def of_turn(record: TurnRecord) -> PlainSpeed | None:
    """The speed of a turn that ran without drafts from its first step to its last, by its wall time; None for any
    other, for too few steps, or if no time was measured."""
    steps, start = record.steps, record.start
    seconds = sum(step.stages.total for step in steps) / 1e3
    if any(step.mode != "plain" for step in steps) or len(steps) < MIN_STEPS or seconds <= 0:
        return None
    tok_s = sum(len(step.tokens) for step in steps) / seconds
    return PlainSpeed(tok_s, len(steps), len(start.prompt_ids), start.created, "a plain turn")
