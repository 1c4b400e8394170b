"""What recorded steps show of a drafter: its probabilities compared with how often the target agreed, and why a tree
left candidates out.

A draft position counts only in steps whose walk reached it, because only there the target's own token is known.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from dflash_core.events import StepEvent

BINS = 10


@dataclass(frozen=True, slots=True)
class Position:
    """Draft position `depth`, reached `count` times. `stated`: the mean probability that the drafter gave its best
    token, `hit`: how often that was the target's, `hit_any`: how often the target's was any of the recorded
    candidates."""

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
    found = defaultdict[int, list[tuple[float, bool, bool]]](list)
    for step in steps:
        for depth, (token, tokens, probs) in enumerate(_met(step), 1):
            found[depth].append((probs[0], tokens[0] == token, token in tokens))
    return tuple(Position(depth, len(rows), *_means(rows)) for depth, rows in found.items())


def by_probability(steps: Iterable[StepEvent]) -> tuple[Bin, ...]:
    """The same over all candidates of all reached positions, by the probability that the drafter gave them."""
    found = defaultdict[int, list[tuple[float, bool]]](list)
    for step in steps:
        for token, tokens, probs in _met(step):
            for candidate, prob in zip(tokens, probs):
                found[min(int(prob * BINS), BINS - 1)].append((prob, candidate == token))
    return tuple(Bin(at / BINS, (at + 1) / BINS, len(rows), *_means(rows)) for at, rows in sorted(found.items()))


def _means(rows: Sequence[Sequence[float]]) -> Iterator[float]:
    return (sum(column) / len(rows) for column in zip(*rows))


def _met(step: StepEvent) -> Iterable[tuple[int, tuple[int, ...], list[float]]]:
    """Per draft position that the walk reached: the target's token, the candidates, their probabilities."""
    walked = [step.tree.tokens[node] for node in step.tree.accepted[1:]]
    if step.bonus is not None:
        walked.append(step.bonus)
    for token, tokens, log_probs in zip(walked, step.drafts.tokens, step.drafts.log_probs):
        yield token, tokens, [math.exp(value) for value in log_probs]


Why = Literal["p_min", "budget", "value", "stop", "chain", "not drafted", "no depth left"]
"""`value`: a tree by learned value ended before it, as it would not pay; `stop`: its parent ends the answer."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A candidate for a place under node `parent` that was not chosen. `prob`: its own probability at its depth,
    `path_prob`: the product along its path."""

    parent: int
    depth: int
    rank: int
    token: int
    prob: float
    path_prob: float
    why: Why


@dataclass(frozen=True, slots=True)
class FirstRejection:
    """Where the walk left the tree: after `node` the target drew `token`. `rank` (0 the best) and `prob` are the
    drafter's, None where it is not among the recorded candidates; `why` it is not in the tree."""

    node: int
    token: int
    rank: int | None
    prob: float | None
    why: Why


def rejected(step: StepEvent) -> tuple[Rejected, ...]:
    """The candidates that the tree builder considered and did not choose, likelier paths first: under each node the
    best one left. Later siblings and all descendants were never considered."""
    tree, drafts = step.tree, step.drafts
    children = Counter(tree.parents[1:])
    width = 1 if step.mode == "chain" else None
    found = []
    for node, depth in enumerate(tree.depths):
        rank = children[node]
        if depth >= len(drafts.tokens) or rank >= len(drafts.tokens[depth][:width]):
            continue
        prob = math.exp(drafts.log_probs[depth][rank])
        token, path = drafts.tokens[depth][rank], tree.path_probs[node] * prob
        found.append(Rejected(node, depth + 1, rank, token, prob, path, _why(step, node, depth, rank)))
    return tuple(sorted(found, key=lambda one: one.path_prob, reverse=True))


def first_rejection(step: StepEvent) -> FirstRejection | None:
    """Where the target drew a token outside the tree; None where the step does not record what it drew there."""
    if step.bonus is None:
        return None
    node, depth, rank = step.tree.accepted[-1], step.accepted_depth, step.bonus_rank
    if rank is None:
        why: Why = "no depth left" if depth >= len(step.drafts.tokens) else "not drafted"
        return FirstRejection(node, step.bonus, None, None, why)
    return FirstRejection(
        node, step.bonus, rank, math.exp(step.drafts.log_probs[depth][rank]), _why(step, node, depth, rank)
    )


def _why(step: StepEvent, node: int, depth: int, rank: int) -> Why:
    """Why a candidate under `node` is not in the tree. A step does not record which tokens end an answer, but the last
    step of an answer ends with one."""
    if step.stop == "stop token" and node and step.tree.tokens[node] == step.tokens[-1]:
        return "stop"
    p_min = step.knobs.p_min
    if (depth or rank) and p_min > 0 and step.drafts.log_probs[depth][rank] < math.log(p_min):
        return "p_min"
    if step.mode == "chain" and rank:
        return "chain"
    cap = step.knobs.cap if step.tree.values else step.knobs.budget
    if cap is not None and len(step.tree.tokens) > cap:
        return "budget"
    # A fixed tree that is not full takes every candidate but those after the end of the answer.
    return "value" if step.tree.values else "stop"
