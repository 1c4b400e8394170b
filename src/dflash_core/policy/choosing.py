"""Chooses the drafter of the next step, or none, by the results of earlier steps in the same circumstance.

The result of a step without a draft is known beforehand: one token, or the tokens that the text offers to copy. For
each drafter, tokens and time of its steps are averaged by circumstance, which is the result of the previous step:
after a block that was right to a great depth the next one tends to be right too. If steps of the present answer yield
more or fewer tokens than expected, the expectations of all drafters are scaled. Only means decide, without a margin for
their noise: with one, a drafter that nearly pays would be used forever.

A drafter that is expected to lose time is still tried, when its allowance of time covers the expected loss. So small
losses are tried often and large ones rarely. The allowance does not start at zero: one or two steps are not enough to
judge. Once what drafts really lost has used it up, none runs until time has earned more, whatever is expected of it.
"""

from __future__ import annotations

import bisect
import math
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dflash_core.policy.base import LATELY

DECAY = 0.99  # factor of a sum of steps at each further step
WIDER, WIDER_ALONE = 2.0, 4.0  # steps of the mean over all circumstances that are added to those of one
SHRINK = 32.0  # weight, in tokens, of the prior that an answer is as expected
START_TOKENS, START_STEPS = 3.0, 2.0  # prior of a drafter: tokens per step, and its weight in steps
TELLING = 3.0  # most plain steps to lose by starting an answer with the drafter of the longest block
LENGTHS = (1, 2, 4, 8)  # upper bounds of classes for the tokens of a step, and for the number of steps without a draft
NOBODY, FIRST, ALL, QUEUED = "nobody", "first", "all", "queued"
DOUBTS = (0.03, 0.1, 0.3)  # upper bounds of classes for the mean of -log of the target's probability of newest tokens
MIN_CERTAINTY = 1e-4
SHARE = 0.01  # of the time, for drafts that may lose some
START_SPARE = 2.0  # plain steps: a turn that thinks and answers starts three allowances, and may lose 5 % of 256 tokens
MAX_CREDIT = 12.0  # the most that gains add up to, so that a drafter which was good may not lose for long

Circumstance = str
"""The class of the previous step: its drafter and tokens; without a draft, how certain the target was of its newest
tokens, or how many steps had no draft."""
Place = tuple[str, bool]
"""The part of the text, and whether an answer begins."""


@dataclass(slots=True)
class Found:
    """Decayed sums over a drafter's steps: tokens, time in plain steps, number of steps."""

    tokens: float = 0.0
    plain: float = 0.0
    steps: float = 0.0

    def add(self, tokens: float, plain: float) -> None:
        self.tokens, self.plain = DECAY * self.tokens + tokens, DECAY * self.plain + plain
        self.steps = DECAY * self.steps + 1

    @property
    def mean(self) -> float:
        """Expected tokens of a step."""
        return (self.tokens + START_STEPS * START_TOKENS) / (self.steps + START_STEPS)

    @property
    def never_right(self) -> bool:
        return self.tokens == self.steps

    @property
    def share(self) -> float:
        """Of the time, for tries: the less, the more drafts have brought nothing, if none was ever right."""
        return SHARE * START_STEPS / (START_STEPS + (self.steps if self.never_right else 0.0))


Drafts = dict[Circumstance, Found]
"""The sums of one drafter by circumstance; ALL: over all of them; QUEUED: the same where the previous step's result is
not known yet, on a card."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected tokens of a step, and its time in plain steps."""

    tokens: float
    plain: float


@dataclass(slots=True)
class Allowance:
    """Of one drafter in one part of the text. `spare`: plain steps that may still be lost by tries, drafts that are
    expected to lose; `credit`: those that drafts have gained, which others that were expected to pay may lose again."""

    spare: float = START_SPARE
    credit: float = 0.0

    def earn(self, plain: float, share: float = SHARE) -> None:
        """Count the time of a step, in plain steps."""
        self.spare += share * plain

    def settle(self, gained: float, lost: float = 0.0) -> None:
        """Count the result of a draft: plain steps gained, or lost where negative. `lost`: what it was expected to
        lose, which a try uses up at least."""
        self.spare -= lost
        self.credit = min(self.credit + (gained if gained > 0 else min(gained + lost, 0.0)), MAX_CREDIT)
        if self.credit < 0:
            self.spare, self.credit = self.spare + self.credit, 0.0

    def covers(self, lost: float) -> bool:
        """Whether a draft that is expected to lose that much may be tried."""
        return lost <= self.spare

    @property
    def left(self) -> float:
        """Plain steps that drafts which are expected to pay may still lose."""
        return self.spare + self.credit


@dataclass(frozen=True, slots=True)
class Picked:
    """The chosen drafter, None for none, and the place. `lost`: expected loss in plain steps against the best choice;
    `tries`: whether the allowance pays for it."""

    at: int | None
    place: Place = ("", False)
    lost: float = 0.0
    tries: bool = False


def tried_again(lost: float) -> str:
    """The reason of a step that the allowance pays for, with what it may lose, in plain steps, if that is not 0.0."""
    return f"drafts are tried again; {lost:.1f} plain steps may be lost" if lost >= 0.05 else "drafts are tried again"


class Chooser:
    """`kinds`: of the drafters, in order. The sums of each drafter are stored elsewhere; this has the answer's state.

    Every drafter has its own allowance in each place, because its sums are by place too. So a drafter with small losses
    does not use up what another may lose, none spends in one part of the text what was saved in another, and tries
    after the first step do not use up what first steps may lose.

    `start`: what an allowance starts with, in plain steps.
    """

    def __init__(self, kinds: Sequence[str], start: float = START_SPARE) -> None:
        self._kinds, self._start = tuple(kinds), start
        self.reset()
        self.begin()

    def reset(self) -> None:
        """Reset: nothing is known about any drafter."""
        self._allowances: dict[tuple[Place, str], Allowance] = {}
        self._plainly = Allowance()  # of steps without a draft, where drafts are expected to pay

    def begin(self) -> None:
        """An answer begins."""
        # Found and expected tokens of this answer's steps, by drafter.
        self._brought, self._expected = defaultdict[str, float](float), defaultdict[str, float](float)
        self._doubts = deque[float](maxlen=LATELY)  # of the target at its newest tokens: -log of their probability
        self._circumstance: Circumstance = FIRST
        self._last = ("", 0)  # the drafter of the previous step, and its tokens
        self._undrafted = 0

    def expected(self, at: int, drafts: Drafts, start: float) -> Expected:
        """The expectation for the next step with drafter `at`. `start`: its assumed time in plain steps, before any was
        measured."""
        kind, known = self._kinds[at], drafts.get(ALL, Found())
        # What this answer's steps brought, over what was expected; that of all drafters where this one has few.
        factor = (sum(self._brought.values()) + SHRINK) / (sum(self._expected.values()) + SHRINK)
        factor = (self._brought[kind] + SHRINK * factor) / (self._expected[kind] + SHRINK)
        return Expected(self._tokens(kind, drafts) * factor, known.plain / known.steps if known.steps else start)

    def _tokens(self, kind: str, drafts: Drafts) -> float:
        """Tokens of a step: the mean of this circumstance, with a few steps of the mean over all circumstances, or of
        the drafter's own previous step, as a prior."""
        known, here = drafts.get(ALL, Found()), drafts.get(self._circumstance, Found())
        tokens = known.mean
        if self._last[0] == kind:
            tokens = (tokens + self._last[1]) / 2
        # What tells several drafters apart has to count soon; for one, a few steps in a circumstance are mostly noise.
        wider = WIDER if len(self._kinds) > 1 else WIDER_ALONE
        return (here.tokens + wider * tokens) / (here.steps + wider)

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
        """Choose among the drafters in `expected`. `none`: tokens of a step without a draft, minus the value of its
        time at `rate` tokens per plain step; `sure`: whether that time was measured. `furthest`: the drafter with the
        longest block. `part`: of the text."""
        begins = self._circumstance == FIRST
        place = part, begins
        nets = {
            at: one.tokens - rate * one.plain
            for at, one in expected.items()
            if none == -math.inf  # one of them runs where there is no other choice
            or sum(self.allowance((part, first), self._kinds[at]).left for first in (True, False)) > 0
        }
        if not nets:
            return Picked(None, place)
        best = max(nets, key=lambda at: nets[at])
        most = max(none, nets[best])
        lost = {at: (most - net) / rate for at, net in nets.items()}
        if begins and furthest in nets and lost[furthest] <= TELLING:
            return Picked(furthest, place, lost[furthest])
        # A drafter as good as the best loses almost nothing and could always be tried: it goes last, so others get a
        # turn.
        for at in sorted(nets, key=lambda at: -lost[at]):
            if lost[at] > 0 and self.allowance(place, self._kinds[at]).covers(lost[at]):
                return Picked(at, place, lost[at], tries=True)
        if nets[best] <= none:
            return Picked(None, place)
        if not sure and self._plainly.covers((most - none) / rate):
            return Picked(None, place, (most - none) / rate, tries=True)
        return Picked(best, place)

    def allowance(self, place: Place, kind: str) -> Allowance:
        """What a drafter may lose there. In a further part of the text it starts with nothing where the drafter has
        used up what it had in another one, and gained nothing in any."""
        if (place, kind) not in self._allowances:
            others = [one for ((part, begins), its), one in self._allowances.items()
                      if its == kind and part != place[0] and not begins]  # fmt: skip
            used = any(one.spare < self._start / 2 for one in others) and not any(one.credit for one in others)
            self._allowances[place, kind] = Allowance(0.0 if used else self._start)
        return self._allowances[place, kind]

    def wait(self, at: int, expected: Expected, none: float, rate: float, part: str = "") -> int:
        """Plain steps until drafter `at`, which does not pay, is tried again."""
        lost = (none - expected.tokens) / rate + expected.plain
        spare = self.allowance((part, False), self._kinds[at]).spare
        return max(math.ceil((max(lost, 0.0) - spare) * len(self._kinds) / SHARE), 1)

    def drafted(self, at: int, tokens: int, plain: float, drafts: Drafts) -> None:
        """Count a step of drafter `at`, `plain` its time in plain steps, into `drafts` too."""
        kind, known = self._kinds[at], drafts.get(ALL, Found()).steps
        # The result of an unknown drafter shows more about the drafter than about the answer.
        weight = known / (known + START_STEPS)
        self._brought[kind] += weight * tokens
        self._expected[kind] += weight * self._tokens(kind, drafts)
        for circumstance in (ALL, self._circumstance):
            drafts.setdefault(circumstance, Found()).add(tokens, plain)
        self._circumstance, self._last, self._undrafted = f"{kind} {_class_of(tokens)}", (kind, tokens), 0

    def certain(self, chances: Sequence[float]) -> None:
        """The target's own probability of each of the newest tokens; empty where unknown, which clears older ones.
        Called before the step is counted."""
        if not chances:
            self._doubts.clear()
        self._doubts.extend(-math.log(max(p, MIN_CERTAINTY)) for p in chances)

    def undrafted(self) -> None:
        """Count a step without a draft."""
        self._undrafted, self._last = self._undrafted + 1, ("", 0)
        known = str(_class_of(self._undrafted))
        if self._doubts:
            known = f"doubt {bisect.bisect(DOUBTS, sum(self._doubts) / len(self._doubts))}"
        self._circumstance = f"{NOBODY} {known}"

    def spent(self, plain: float, picked: Picked, tokens: int) -> None:
        """Account for a step's time in plain steps, and for what its draft gained or lost."""
        self._plainly.earn(plain)
        for kind in self._kinds:
            self.allowance(picked.place, kind).earn(plain, SHARE / len(self._kinds))
        lost = picked.lost if picked.tries else 0.0
        if picked.at is not None:
            self.allowance(picked.place, self._kinds[picked.at]).settle(tokens - plain, lost)
        elif picked.tries:
            self._plainly.settle(-lost, lost)


def _class_of(count: int) -> int:
    return sum(count > length for length in LENGTHS)
