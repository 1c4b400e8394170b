"""The measured runs of an experiment, and its progress, as data; and the speed of plain decoding, the baseline for
speeds with drafts."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from dflash_core.lab.grid import Arm
from dflash_core.turn_stats import TurnReport

if TYPE_CHECKING:
    from dflash_core.record import TurnRecord


@dataclass(frozen=True, slots=True)
class Trial:
    """One measured run. `right` is None where the answer cannot be scored, or was cut off by max_tokens."""

    setting: int
    prompt: int
    repeat: int
    report: TurnReport
    right: bool | None = None

    @property
    def pair(self) -> tuple[int, int]:
        """The key that this run shares with runs of other arms."""
        return self.prompt, self.repeat


@dataclass(frozen=True, slots=True)
class Excluded:
    """A prompt that could not be measured."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Result:
    """The measured runs. `left`: the arms that were not dropped; None: all of them. `about` names machine and models;
    `complete` is False if it was cancelled before its last run had ended."""

    arms: tuple[Arm, ...]
    axes: tuple[str, ...]
    prompts: tuple[str, ...]
    repeats: int
    trials: tuple[Trial, ...]
    excluded: tuple[Excluded, ...]
    complete: bool
    about: tuple[tuple[str, str], ...] = ()
    base: int | None = None
    left: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class ExperimentProgress:
    """`done` of `total` parts; `left_s`: estimated seconds for the others, None until known."""

    done: int
    total: int
    left_s: float | None
    doing: str


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


def plain_of_result(result: Result, how: str) -> PlainSpeed | None:
    """The speed of an experiment's plain arm, the median of its runs; None without one, or for too few steps."""
    its = [trial.report for trial in result.trials if result.arms[trial.setting].knobs.mode == "plain"]
    steps = sum(report.stats.steps for report in its)
    if steps < MIN_STEPS:
        return None
    tok_s = statistics.median(report.stats.tokens_per_second for report in its)
    positions = round(statistics.median(report.stats.prompt_tokens for report in its))
    return PlainSpeed(tok_s, steps, positions, datetime.now(UTC).isoformat(timespec="seconds"), how)


def plain_of_turn(record: TurnRecord) -> PlainSpeed | None:
    """The speed of a turn that ran without drafts from its first step to its last, by its wall time; None for any
    other, for too few steps, or if no time was measured."""
    steps, start = record.steps, record.start
    seconds = sum(step.stages.total for step in steps) / 1e3
    if any(step.mode != "plain" for step in steps) or len(steps) < MIN_STEPS or seconds <= 0:
        return None
    tok_s = sum(len(step.tokens) for step in steps) / seconds
    return PlainSpeed(tok_s, len(steps), len(start.prompt_ids), start.created, "a plain turn")
