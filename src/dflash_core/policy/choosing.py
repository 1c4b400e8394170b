"""Who drafts the next step, if anybody: told by what drafts brought after steps like the last one.

A step without a draft has a price that is known beforehand: one token, or what the text offers to copy. Of each drafter
it is found what its steps bring and cost by what the step before was: a block that was right far down goes on, one that
was wrong is better followed by a plain step. Where the present answer brings less than such steps did elsewhere, or
more, so much less or more is expected of all drafters here. Means alone decide, without a margin for their noise: with
one, a drafter that nearly pays would be asked for ever.

What is expected to lose is tried all the same, at a price: a small share of the time is set apart, and such a try is
made when that covers what it is expected to lose. So what loses little is tried often and what loses much seldom, and
whatever a drafter costs, trying it costs no more than that share. There is some time to begin with: most steps bring
little and some bring much, so one or two tell nothing.
"""

from __future__ import annotations

import bisect
import math
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dflash_core.policy.base import LATELY

SHARE = 0.015  # of the time, for tries that are expected to lose
KEEP = 0.99  # of a sum of steps, at each further one
WIDER = 2.0  # steps that what is known of all circumstances counts for, beside what is known of these
SHRINK = 32.0  # tokens of an answer that count as expected, before what it brought tells otherwise
START_TOKENS, START_STEPS = 3.0, 2.0  # a drafter's first steps are taken to bring so many, and count as so many steps
START_SPARE = 2.0  # plain steps, for tries of a drafter in one place, before any time went by there
TELLING = 3.0  # plain steps that it may lose to begin an answer with the drafter that reaches furthest
LENGTHS = (1, 2, 4, 8)
"""Tokens of a step, or steps without a draft, up to which they count as alike."""
NOBODY, FIRST, ALL = "nobody", "first", "all"
DOUBTS = (0.03, 0.1, 0.3)
"""Means of -log of the target's probability of its newest tokens, up to which they count as alike."""
LEAST_CERTAIN = 1e-4

Circumstance = str
"""What the step before was: its drafter and how many tokens it brought, or none; where nobody drafted, how certain the
target was of the newest tokens, or how long nobody has."""


@dataclass(slots=True)
class Found:
    """Sums over a drafter's newest steps: tokens, time in plain steps, how many they are."""

    tokens: float = 0.0
    plain: float = 0.0
    steps: float = 0.0

    def add(self, tokens: float, plain: float) -> None:
        """Count a step."""
        self.tokens, self.plain = KEEP * self.tokens + tokens, KEEP * self.plain + plain
        self.steps = KEEP * self.steps + 1


Drafts = dict[Circumstance, Found]
"""What was found of one drafter; ALL: in all circumstances."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Of a step: tokens, and its time in plain steps."""

    tokens: float
    plain: float


@dataclass(slots=True)
class Answer:
    """What steps of the present answer brought beside what was expected of them, in tokens by drafter.

    A step counts by how well its drafter is known: where little is, what it brings says more of the drafter than of the
    answer, and nothing of the other drafters.
    """

    brought: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    expected: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, kind: str, tokens: int, expected: float, known: float) -> None:
        """Count a step of a drafter that so many steps are `known` of."""
        weight = known / (known + START_STEPS)
        self.brought[kind] += weight * tokens
        self.expected[kind] += weight * expected

    def factor(self, kind: str) -> float:
        """Tokens for each that is expected elsewhere: as of all drafters here, where it has few of its own."""
        here = (sum(self.brought.values()) + SHRINK) / (sum(self.expected.values()) + SHRINK)
        return (self.brought[kind] + SHRINK * here) / (self.expected[kind] + SHRINK)


Place = tuple[str, bool]
"""A part of the text, and whether an answer begins."""


@dataclass(frozen=True, slots=True)
class Picked:
    """Who drafts, None for nobody, and where. `lost`: plain steps that this is expected to lose against another;
    `tries`: whether they are of the time for tries."""

    at: int | None
    place: Place = ("", False)
    lost: float = 0.0
    tries: bool = False


class Chooser:
    """`kinds`: of the drafters, in order. What was found of each is kept elsewhere; here is what the answer tells.

    Every drafter has time of its own for tries in each place, as what is found of it is kept by place: so one that
    loses little does not use up what another saves for, none spends in one part of the text what another set apart, and
    tries after the first step do not use up what beginnings need.
    """

    def __init__(self, kinds: Sequence[str]) -> None:
        self._kinds = tuple(kinds)
        self.reset()
        self.begin()

    def reset(self) -> None:
        """Nothing is known of any drafter."""
        # In plain steps, of a drafter or NOBODY; drafters have START_SPARE besides.
        self._spare = defaultdict[tuple[Place, str], float](float)

    def begin(self) -> None:
        """An answer begins."""
        self._answer = Answer()
        self._doubts = deque[float](maxlen=LATELY)  # of the target at its newest tokens: -log of their probability
        self._circumstance: Circumstance = FIRST
        self._last = ("", 0)  # who drafted the step before, and its tokens
        self._without = 0

    def expected(self, at: int, drafts: Drafts, start: float) -> Expected:
        """Of the next step, if drafter `at` drafts it. `start`: its time in plain steps, before any was found."""
        tokens, plain = self._known(at, drafts, start)
        return Expected(tokens * self._answer.factor(self._kinds[at]), plain)

    def pick(
        self,
        expected: Mapping[int, Expected],
        none: float,
        rate: float,
        *,
        sure: bool = True,
        furthest: int | None = None,
        part: str = "",
    ) -> Picked:
        """Who drafts, of those of whom something is `expected`. `none`: tokens that a step without a draft brings, less
        what its time is worth at `rate` tokens per plain step; `sure`: whether that time was measured. `furthest`:
        whose first step tells most of an answer's text. `part`: of the text; what is found is kept by it."""
        nets = {at: one.tokens - rate * one.plain for at, one in expected.items()}
        best = max(nets, key=lambda at: nets[at])
        most = max(none, nets[best])
        lost = {at: (most - net) / rate for at, net in nets.items()}
        begins = self._circumstance == FIRST
        place = part, begins
        if begins and furthest is not None and lost[furthest] <= TELLING:
            return Picked(furthest, place, lost[furthest])
        # One that is as good as the rest loses next to nothing, time and again: it goes last and keeps nobody waiting.
        for at in sorted(nets, key=lambda at: -lost[at]):
            if 0 < lost[at] <= START_SPARE + self._spare[place, self._kinds[at]]:
                return Picked(at, place, lost[at], tries=True)
        if nets[best] <= none:
            return Picked(None, place)
        if not sure and (most - none) / rate <= self._spare[place, NOBODY]:
            return Picked(None, place, (most - none) / rate, tries=True)
        return Picked(best, place)

    def wait(self, at: int, expected: Expected, none: float, rate: float, part: str = "") -> int:
        """Plain steps until drafter `at`, which does not pay, is tried."""
        lost = (none - expected.tokens) / rate + expected.plain
        spare = START_SPARE + self._spare[(part, False), self._kinds[at]]
        return max(math.ceil((lost - spare) * len(self._kinds) / SHARE), 1)

    def drafted(self, at: int, tokens: int, plain: float, drafts: Drafts, start: float) -> None:
        """Count a step of drafter `at`, `plain` its time in plain steps, into `drafts` too."""
        kind = self._kinds[at]
        known = drafts.get(ALL, Found()).steps
        self._answer.add(kind, tokens, self._known(at, drafts, start)[0], known)
        for circumstance in (ALL, self._circumstance):
            drafts.setdefault(circumstance, Found()).add(tokens, plain)
        self._circumstance, self._last, self._without = f"{kind} {_alike(tokens)}", (kind, tokens), 0

    def said(self, certain: Sequence[float]) -> None:
        """The target's own probability of each newest token; none where it is not known, so that nothing older stands
        for the newest. Before the step is counted."""
        if not certain:
            self._doubts.clear()
        self._doubts.extend(-math.log(max(p, LEAST_CERTAIN)) for p in certain)

    def rested(self) -> None:
        """Count a step that nobody drafted."""
        self._without += 1
        self._circumstance, self._last = f"{NOBODY} {self._resting_at()}", ("", 0)

    def _resting_at(self) -> str:
        """What tells most of a draft after steps without one: how certain the target was of its newest tokens; where
        that is not known, how many such steps there were."""
        if not self._doubts:
            return str(_alike(self._without))
        return f"doubt {bisect.bisect(DOUBTS, sum(self._doubts) / len(self._doubts))}"

    def spent(self, plain: float, picked: Picked) -> None:
        """A step took so many plain steps: some of that is set apart, and what it was expected to lose was used up."""
        for kind in (*self._kinds, NOBODY):
            self._spare[picked.place, kind] += SHARE * plain / len(self._kinds)
        if picked.tries:
            self._spare[picked.place, NOBODY if picked.at is None else self._kinds[picked.at]] -= picked.lost

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
