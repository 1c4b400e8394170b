"""Copied text as a step without a drafter: a chain of what followed the same words earlier."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from dflash_core.drafters.successors import HIT_RATES, LONGEST, MATCH_CLASSES, Successor
from dflash_core.events import Choice, brings
from dflash_core.policy.base import Decision, StepPlan
from dflash_core.policy.best_first import Text
from dflash_core.policy.costs import paying
from dflash_core.tree import Tree

FORGET_AT = 200.0
KEEP, PRIOR_TOKENS = (
    0.98,
    8.0,
)  # of sums over chains at each further one, and the prior that they bring what is expected
MIN_VALUE = 0.01  # least value of a node in a chain of copied text
_PRIOR_TRIALS = 4.0


@dataclass(slots=True)
class Copies:
    """How often a successor was right, by the class of its match."""

    trials: list[float] = field(default_factory=lambda: [_PRIOR_TRIALS] * MATCH_CLASSES)
    hits: list[float] = field(default_factory=lambda: [_PRIOR_TRIALS * rate for rate in HIT_RATES])
    brought: float = PRIOR_TOKENS
    expected: float = PRIOR_TOKENS

    def add(self, match: int, hit: bool) -> None:
        """Count one."""
        self.trials[match] += 1
        self.hits[match] += hit
        if self.trials[match] > FORGET_AT:
            self.trials[match] /= 2
            self.hits[match] /= 2

    def rate(self, match: int) -> float:
        return self.hits[match] / self.trials[match]

    @property
    def trust(self) -> float:
        """Tokens that chains brought, over those that their successors' rates promised. Most trials lie below a node
        that was right. A chain begins where drafts are expected to be wrong, and there the text is wrong more often."""
        return self.brought / self.expected

    def weigh(self, copied: Chain, nodes: int, accepted: int) -> None:
        """Count a step that verified the first `nodes` of a chain, of which `accepted` were right."""
        promised = sum(copied.values[1 : nodes + 1]) / self.trust
        self.brought = KEEP * self.brought + (1 - KEEP) * PRIOR_TOKENS + accepted
        self.expected = KEEP * self.expected + (1 - KEEP) * PRIOR_TOKENS + promised


@dataclass(frozen=True, slots=True)
class Chain:
    """Copied text after the root, without a drafter. `values`: the chance that the chain is accepted up to each node,
    the root's 1 first."""

    found: tuple[Successor, ...]
    values: tuple[float, ...]


def chain(text: Text, copies: Copies, stops: frozenset[int], most: int) -> Chain:
    """The tokens that followed earlier in the text, one after the other, while they are likely enough."""
    tail, found, values = list(text.tail()), list[Successor](), [1.0]
    while len(found) < most:
        successor = text.after(tail)
        if successor is None:
            break
        value = values[-1] * copies.rate(successor.match) * (1.0 if found else copies.trust)
        if value < MIN_VALUE:
            break
        found.append(successor)
        values.append(value)
        tail = [*tail[1 - LONGEST :], successor.token]
        if successor.token in stops:
            break
    return Chain(tuple(found), tuple(values))


@dataclass(frozen=True, slots=True)
class Rest:
    """A step without a draft: the copied nodes, if they pay, and its tokens minus the value of its time."""

    copied: Chain
    nodes: int
    brings: float

    @staticmethod
    def of(copied: Chain, copying: Sequence[float], rate: float) -> Rest:
        """`copying`: the milliseconds of such steps by rows; `rate`: tokens per millisecond."""
        nodes = paying(copied.values, copying, rate)
        return Rest(copied, nodes, sum(copied.values[: nodes + 1]) - rate * copying[nodes + 1])

    def plan(self, decision: Decision, root: int, deepest: int) -> StepPlan:
        """The chain below `root`, at most `deepest` deep."""
        nodes = min(self.nodes, deepest)
        tokens = [one.token for one in self.copied.found[:nodes]]
        values = self.copied.values[: nodes + 1]
        count = len(tokens) + 1
        paths = tuple(math.log(value) for value in values)
        steps = (0.0, *(after - before for before, after in itertools.pairwise(paths)))
        tree = Tree((root, *tokens), tuple(range(-1, count - 1)), tuple(range(count)), steps, paths,
                    tuple(values), tuple(range(1, count)))  # fmt: skip
        return StepPlan(tree, decision, Choice(brings(self.copied.values), count))
