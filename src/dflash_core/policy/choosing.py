"""Who drafts the next step, if anybody: told by what drafts brought behind steps like the last one.

A step without a draft has a price that is known beforehand: one token, or what the text offers to copy. Of each drafter
it is found what its steps bring and cost by what the step before was: a block that was right far down goes on, one that
was wrong is better followed by a plain step. Where the present answer brings less than such steps did elsewhere, or
more, so much less or more is expected of all drafters here. Means alone decide, without a margin for their noise: with
one, a drafter that nearly pays would be asked for ever.

What is expected to lose is tried all the same, at a price: a small share of the time is put aside, and such a try is
made when that covers what it is expected to lose. So what loses little is tried often and what loses much seldom, and
whatever a drafter costs, trying it costs no more than that share. For a drafter of which little is known there is some
time beforehand: most steps bring little and some bring much, so one or two tell nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

SHARE = 0.015  # of the time, for tries that are expected to lose
KEEP = 0.99  # of a sum of steps, at each further one
WIDER = 2.0  # steps that what is known of all circumstances counts for, beside what is known of these
SHRINK = 8.0  # tokens of an answer that count as expected, before what it brought tells otherwise
START_TOKENS, START_STEPS = 3.0, 2.0  # a drafter's first steps are taken to bring so many, and count as so many steps
START_SPARE = 1.5  # plain steps per position of a drafter's block, to lose until it is known
TELLING = 3.0  # plain steps that it may lose to begin an answer with the drafter that reaches furthest
LENGTHS = (1, 2, 4, 8)
"""Tokens of a step, or steps without a draft, up to which they count as alike."""
NOBODY, FIRST, ALL = "nobody", "first", "all"

Circumstance = str
"""What the step before was: its drafter and how many tokens it brought, how long nobody has drafted, or none."""


@dataclass(slots=True)
class Found:
    """Sums over a drafter's newest steps: tokens, time in plain steps, how many they are, squares of their tokens."""

    tokens: float = 0.0
    plain: float = 0.0
    steps: float = 0.0
    squares: float = 0.0

    def add(self, tokens: float, plain: float) -> None:
        """Count a step."""
        self.tokens, self.plain = KEEP * self.tokens + tokens, KEEP * self.plain + plain
        self.steps, self.squares = KEEP * self.steps + 1, KEEP * self.squares + tokens * tokens

    def doubt(self, before: float) -> float:
        """How far the mean of its tokens may be from the truth: twice its deviation, of which `before` is taken to be
        that of one step."""
        mean = self.tokens / self.steps if self.steps else 0.0
        variance = max(self.squares - mean * self.tokens, 0.0) + before * before
        return 2 * math.sqrt(variance) / (self.steps + 1)


Drafts = dict[Circumstance, Found]
"""What was found of one drafter; ALL: in all circumstances."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Of a step: tokens, and its time in plain steps. `doubt`: tokens that it may bring beyond that."""

    tokens: float
    plain: float
    doubt: float = 0.0


@dataclass(slots=True)
class Answer:
    """What steps of the present answer brought beside what was expected of them, in tokens by drafter."""

    brought: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    expected: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, kind: str, tokens: int, expected: float) -> None:
        """Count a step."""
        self.brought[kind] += tokens
        self.expected[kind] += expected

    def factor(self, kind: str) -> float:
        """Tokens for each that is expected elsewhere: as of all drafters here, where it has few of its own."""
        here = (sum(self.brought.values()) + SHRINK) / (sum(self.expected.values()) + SHRINK)
        return (self.brought[kind] + SHRINK * here) / (self.expected[kind] + SHRINK)


Purse = tuple[str, bool]
"""Time for tries: of whom, and whether for beginnings of answers."""


@dataclass(frozen=True, slots=True)
class Picked:
    """Who drafts, None for nobody. `lost`: plain steps that this is expected to lose against another, and `tries`
    whose time that is. `doubtful`: too little is known of it to say."""

    at: int | None
    tries: Purse | None = None
    lost: float = 0.0
    doubtful: bool = False


class Chooser:
    """`kinds`: of the drafters, in order. What was found of each is kept elsewhere; here is what the answer tells.

    Every drafter has time of its own for tries, so that one that loses little does not use up what another saves for.
    """

    def __init__(self, kinds: Sequence[str], blocks: Sequence[int]) -> None:
        """`blocks`: positions of each drafter's block."""
        self._kinds, self._blocks = tuple(kinds), tuple(blocks)
        self.reset()
        self.begin()

    def reset(self) -> None:
        """Nothing is known of any drafter."""
        self._spare = defaultdict[Purse, float](float)  # in plain steps
        self._start = [START_SPARE * block for block in self._blocks]

    def begin(self) -> None:
        """An answer begins."""
        self._answer = Answer()
        self._circumstance: Circumstance = FIRST
        self._last = ("", 0)  # who drafted the step before, and its tokens
        self._without = 0

    def expected(self, at: int, drafts: Drafts, start: float) -> Expected:
        """Of the next step, if drafter `at` drafts it. `start`: its time in plain steps, before any was found."""
        tokens, plain = self._known(at, drafts, start)
        known = drafts.get(FIRST if self._circumstance == FIRST else ALL, Found())
        doubt = known.doubt(self._blocks[at] / 2)
        return Expected(tokens * self._answer.factor(self._kinds[at]), plain, doubt)

    def pick(
        self,
        expected: Mapping[int, Expected],
        none: float,
        rate: float,
        *,
        sure: bool = True,
        furthest: int | None = None,
    ) -> Picked:
        """Who drafts, of those of whom something is `expected`. `none`: tokens that a step without a draft brings, less
        what its time is worth at `rate` tokens per plain step; `sure`: whether that time was measured. `furthest`:
        whose first step tells most of an answer's text."""
        nets = {at: one.tokens - rate * one.plain for at, one in expected.items()}
        best = max(nets, key=lambda at: nets[at])
        most = max(none, nets[best])
        lost = {at: (most - net) / rate for at, net in nets.items()}
        begins = self._circumstance == FIRST
        if begins and furthest is not None and lost[furthest] <= TELLING:
            return Picked(furthest, lost=lost[furthest])
        may = {at: net + expected[at].doubt for at, net in nets.items()}
        doubtful = max(may, key=lambda at: may[at])
        if may[doubtful] > most and 0 < lost[doubtful] <= self._start[doubtful]:
            return Picked(doubtful, lost=lost[doubtful], doubtful=True)
        for at in nets:
            purse = self._kinds[at], begins
            if 0 < lost[at] <= self._spare[purse]:
                return Picked(at, purse, lost[at])
        if nets[best] <= none:
            return Picked(None)
        if not sure and (most - none) / rate <= self._spare[NOBODY, False]:
            return Picked(None, (NOBODY, False), (most - none) / rate)
        return Picked(best)

    def wait(self, at: int, expected: Expected, none: float, rate: float) -> int:
        """Plain steps until drafter `at`, which does not pay, is tried."""
        lost = (none - expected.tokens) / rate + expected.plain
        spare = self._spare[self._kinds[at], False]
        return max(math.ceil((lost - spare) * 2 * len(self._kinds) / SHARE), 1)

    def drafted(self, at: int, tokens: int, plain: float, drafts: Drafts, start: float) -> None:
        """Count a step of drafter `at`, `plain` its time in plain steps, into `drafts` too."""
        kind = self._kinds[at]
        self._answer.add(kind, tokens, self._known(at, drafts, start)[0])
        for circumstance in (ALL, self._circumstance):
            drafts.setdefault(circumstance, Found()).add(tokens, plain)
        self._circumstance, self._last, self._without = f"{kind} {_alike(tokens)}", (kind, tokens), 0

    def rested(self) -> None:
        """Count a step that nobody drafted."""
        self._without += 1
        self._circumstance, self._last = f"{NOBODY} {_alike(self._without)}", ("", 0)

    def spent(self, plain: float, picked: Picked) -> None:
        """A step took so many plain steps: some of that is put aside, and what it was expected to lose was used up."""
        for kind in (*self._kinds, NOBODY):
            for begins in (False, True):
                self._spare[kind, begins] += SHARE * plain / (2 * len(self._kinds))
        if picked.tries is not None:
            self._spare[picked.tries] -= picked.lost
        elif picked.doubtful and picked.at is not None:
            self._start[picked.at] -= picked.lost

    def _known(self, at: int, drafts: Drafts, start: float) -> tuple[float, float]:
        """Tokens of a step, and its time: in these circumstances, and a few steps as of all, or as the drafter's own
        step before was."""
        known, here = drafts.get(ALL, Found()), drafts.get(self._circumstance, Found())
        tokens = (known.tokens + START_STEPS * START_TOKENS) / (known.steps + START_STEPS)
        plain = (known.plain + start) / (known.steps + 1)
        if self._last[0] == self._kinds[at]:
            tokens = (tokens + self._last[1]) / 2
        return (here.tokens + WIDER * tokens) / (here.steps + WIDER), plain


def _alike(steps: int) -> int:
    return sum(steps > length for length in LENGTHS)
