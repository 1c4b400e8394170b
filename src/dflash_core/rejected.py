"""The candidates that a step's tree left out and why, recomputed from the candidates that the step recorded."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from dflash_core.events import StepEvent

Why = Literal["p_min", "budget", "value", "stop", "chain", "not drafted", "no depth left"]
"""`value`: a tree by learned value ended before it, as it would not pay; `stop`: its parent ends the answer."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A candidate for a place under node `parent` that was not chosen.

    `prob` is its own probability at its depth, `path_prob` the product along its path.
    """

    parent: int
    depth: int
    rank: int
    token: int
    prob: float
    path_prob: float
    why: Why


@dataclass(frozen=True, slots=True)
class FirstRejection:
    """Where the walk left the tree: after `node` the target drew `token`.

    `rank` (0 the best) and `prob` are the drafter's for it, None where it is not among the recorded candidates; `why`
    is the reason that it is not in the tree.
    """

    node: int
    token: int
    rank: int | None
    prob: float | None
    why: Why


def rejected(step: StepEvent) -> tuple[Rejected, ...]:
    """The candidates that the tree builder considered and did not choose: under each node the best one left.

    Likelier paths first. Later siblings and all descendants were never considered.
    """
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
    """Why a candidate under `node` is not in the tree. The best one of depth 1 is exempt from `p_min`.

    A step does not record which tokens end an answer, but the last step of an answer ends with one.
    """
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
