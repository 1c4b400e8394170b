"""Copied text as a step without a drafter: a chain of what followed the same words earlier."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from dflash_core.drafters.ngram_table import HIT_RATES, MATCH_CLASSES, NgramTable, Successor, copied
from dflash_core.events import Choice, brings
from dflash_core.policy.base import Decision, StepPlan
from dflash_core.policy.costs import paying
from dflash_core.tree import Tree

FORGET_AT = 200.0
DECAY, PRIOR_TOKENS = 0.98, 8.0  # of sums over chains at each further one; the prior that they bring what is expected
_PRIOR_TRIALS = 4.0


@dataclass(slots=True)
class Copies:
    """How often a successor was right, by the class of its match. `brought`, `expected`: tokens of chains."""

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
        self.brought = DECAY * self.brought + (1 - DECAY) * PRIOR_TOKENS + accepted
        self.expected = DECAY * self.expected + (1 - DECAY) * PRIOR_TOKENS + promised


@dataclass(slots=True)
class Chain:
    """Copied text after the root. `values`: the chance that the chain is accepted up to each node, the root's 1 first.
    `nodes`: how many of them pay, `brings`: the tokens of the step with these, minus the value of its time."""

    found: tuple[Successor, ...]
    values: tuple[float, ...]
    nodes: int = 0
    brings: float = 0.0

    def price(self, copying: Sequence[float], rate: float) -> None:
        """Set how many nodes pay. `copying`: milliseconds of such steps by rows; `rate`: tokens per ms."""
        self.nodes = paying(self.values, copying, rate)
        self.brings = sum(self.values[: self.nodes + 1]) - rate * copying[self.nodes + 1]

    def plan(self, decision: Decision, root: int, deepest: int) -> StepPlan:
        """The chain below `root`, at most `deepest` deep."""
        nodes = min(self.nodes, deepest)
        values = self.values[: nodes + 1]
        paths = tuple(math.log(value) for value in values)
        tree = Tree(
            (root, *(one.token for one in self.found[:nodes])), tuple(range(-1, nodes)), tuple(range(nodes + 1)),
            (0.0, *(after - before for before, after in itertools.pairwise(paths))), paths, values,
            tuple(range(1, nodes + 1)),
        )  # fmt: skip
        return StepPlan(tree, decision, Choice(brings(self.values), nodes + 1))


def chain(text: NgramTable | None, copies: Copies, stops: frozenset[int], most: int) -> Chain:
    """The tokens that followed earlier in the text while they are likely enough. None: copy nothing."""
    found = [*copied(text, copies.rate, most, stops, copies.trust)] if text is not None else []
    return Chain(tuple(one for one, _ in found), (1.0, *(value for _, value in found)))
