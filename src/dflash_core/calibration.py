"""Is the drafter calibrated? Its probabilities compared with how often the target agreed, by draft position.

A position counts only in steps whose walk reached it, because only there the target's own token is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from dflash_core.events import StepEvent

BINS = 10


@dataclass(frozen=True, slots=True)
class Position:
    """Draft position `depth`, reached `count` times.

    `stated` is the mean probability that the drafter gave its best token, `hit` how often that was the target's token,
    `hit_any` how often the target's was any of the recorded candidates.
    """

    depth: int
    count: int
    stated: float
    hit: float
    hit_any: float


@dataclass(frozen=True, slots=True)
class Bin:
    """Candidates with a probability between `low` and `high`: how many, their mean, how often the target took one."""

    low: float
    high: float
    count: int
    stated: float
    hit: float


def by_position(steps: Iterable[StepEvent]) -> tuple[Position, ...]:
    """The drafter's calibration per draft position, over every position that a walk reached."""
    sums: list[list[float]] = []
    for step in steps:
        for depth, (token, tokens, probs) in enumerate(_met(step)):
            if depth == len(sums):
                sums.append([0.0] * 4)
            parts = (1.0, probs[0], float(tokens[0] == token), float(token in tokens))
            sums[depth] = [a + b for a, b in zip(sums[depth], parts)]
    return tuple(
        Position(depth, round(count), *(part / count for part in parts))
        for depth, (count, *parts) in enumerate(sums, 1)
    )


def by_probability(steps: Iterable[StepEvent]) -> tuple[Bin, ...]:
    """The same over all candidates of all reached positions, by the probability that the drafter gave them."""
    sums = [[0.0] * 3 for _ in range(BINS)]
    for step in steps:
        for token, tokens, probs in _met(step):
            for candidate, prob in zip(tokens, probs):
                sums_of = sums[min(int(prob * BINS), BINS - 1)]
                sums_of[0] += 1
                sums_of[1] += prob
                sums_of[2] += candidate == token
    return tuple(
        Bin(place / BINS, (place + 1) / BINS, round(count), stated / count, hit / count)
        for place, (count, stated, hit) in enumerate(sums)
        if count
    )


def _met(step: StepEvent) -> Iterable[tuple[int, tuple[int, ...], list[float]]]:
    """Per draft position that the walk reached: the target's token, the candidates, their probabilities."""
    walked = [step.tree.tokens[node] for node in step.tree.accepted[1:]]
    if step.bonus is not None:
        walked.append(step.bonus)
    for token, tokens, log_probs in zip(walked, step.drafts.tokens, step.drafts.log_probs):
        yield token, tokens, [math.exp(value) for value in log_probs]
