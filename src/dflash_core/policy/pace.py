"""The present speed in tokens per millisecond, by which time is valued; and whether drafting pays at all."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from dflash_core.drafters.successors import HIT_RATES, LONGEST, MATCH_CLASSES, Successor, Successors
from dflash_core.policy.costs import paying

START_TOKENS, START_ROWS = 3.0, 16  # before any step ran: the assumed tokens of a step, and its rows
MIN_WEIGHT = 0.02
NET_WEIGHT, PROBE_WEIGHT = 0.05, 0.25
FORGET_AT = 200.0
MIN_VALUE = 0.01  # least value of a node in a chain of copied text
_PRIOR_TRIALS = 4.0


@dataclass(slots=True)
class Pace:
    """Running means of a step's tokens and of its time in units of the cost of START_ROWS rows."""

    tokens: float = START_TOKENS
    units: float = 1.0
    steps: int = 0

    def rate(self, unit_ms: float) -> float:
        """Tokens per millisecond. `unit_ms`: what START_ROWS rows cost now."""
        return self.tokens / (self.units * unit_ms)

    def add(self, tokens: int, ms: float, unit_ms: float, *, drafted: bool = True, steps: int = 1) -> None:
        """Count a step that drafted, or `steps` alike that did not."""
        self.steps += drafted
        weight = max(MIN_WEIGHT, 1 / (5 + self.steps)) if drafted else 1 - (1 - MIN_WEIGHT) ** steps
        self.tokens += weight * (tokens - self.tokens)
        self.units += weight * (ms / unit_ms - self.units)


@dataclass(slots=True)
class Copies:
    """How often a successor was right, by the class of its match."""

    trials: list[float] = field(default_factory=lambda: [_PRIOR_TRIALS] * MATCH_CLASSES)
    hits: list[float] = field(default_factory=lambda: [_PRIOR_TRIALS * rate for rate in HIT_RATES])

    def add(self, match: int, hit: bool) -> None:
        """Count one."""
        self.trials[match] += 1
        self.hits[match] += hit
        if self.trials[match] > FORGET_AT:
            self.trials[match] /= 2
            self.hits[match] /= 2

    def rate(self, match: int) -> float:
        return self.hits[match] / self.trials[match]


@dataclass(frozen=True, slots=True)
class Chain:
    """Copied text after the root, without a drafter. `values`: the chance that the chain is accepted up to each node,
    the root's 1 first."""

    found: tuple[Successor, ...]
    values: tuple[float, ...]


def chain(text: Successors, copies: Copies, stops: frozenset[int], most: int) -> Chain:
    """The tokens that followed earlier in the text, one after the other, while they are likely enough."""
    tail, found, values = list(text.tail()), list[Successor](), [1.0]
    while len(found) < most:
        successor = text.after(tail)
        if successor is None:
            break
        value = values[-1] * copies.rate(successor.match)
        if value < MIN_VALUE:
            break
        found.append(successor)
        values.append(value)
        tail = [*tail[1 - LONGEST :], successor.token]
        if successor.token in stops:
            break
    return Chain(tuple(found), tuple(values))


def chain_rows(chain: Chain, copying: list[float], rate: float) -> tuple[int, float]:
    """How many of the chain's nodes pay, and the tokens of that step minus the value of its time."""
    nodes = paying(chain.values, copying, rate)
    return nodes, sum(chain.values[: nodes + 1]) - rate * copying[nodes + 1]


@dataclass(slots=True)
class Worth:
    """Whether drafting pays. `net`: a step's tokens with drafts minus the value of its time, as a running mean."""

    net: float = 0.0
    variance: float = 4.0
    tokens: float = 0.0  # running means of a step that drafts: tokens and milliseconds
    ms: float = 0.0
    drafts: int = 0
    without: int = 0  # steps since the last draft

    def beaten_by(self, other: float) -> bool:
        """Whether a step without drafts, with the net value `other`, is better by more than the noise."""
        return other > self.net + 2 * math.sqrt(self.variance * NET_WEIGHT / (2 - NET_WEIGHT))

    def observed(self, tokens: int, ms: float, net: float) -> None:
        """Count a step that drafted."""
        weight = PROBE_WEIGHT if self.without else NET_WEIGHT
        shown = max(weight, 1 / (1 + self.drafts))
        self.tokens += shown * (tokens - self.tokens)
        self.ms += shown * (ms - self.ms)
        self.variance += NET_WEIGHT * ((net - self.net) ** 2 - self.variance)
        self.net += weight * (net - self.net)
        self.without = 0
        self.drafts += 1
