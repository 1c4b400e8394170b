"""`auto` with several drafters loaded: before each step the one whose step brings the most, its time considered.

Every drafter has a policy of its own, with what was learned of it alone. Which of them decides a step is chosen by what
its steps brought behind steps like the last two: a block drafter that was right far down goes on, one that was wrong
leaves to a drafter of few sure tokens. What is little known, or was found long ago, counts as somewhat better than it
was, so that it is tried again. Where the present answer brings less than steps like its own did elsewhere, or more, so
much less or more is expected of all drafters here, above all of those whose steps they were: texts differ more than two
steps show. Text that can be copied has a price beforehand, and is compared by that.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dflash_core.events import FoundRow, StepEvent
from dflash_core.knobs import Knobs
from dflash_core.policy.base import Decision, Plan
from dflash_core.policy.learned import LearnedPolicy
from dflash_core.policy.pair import Part

if TYPE_CHECKING:
    from dflash_core.tree import Candidates

KEEP = 0.97  # of a sum of steps, at each further one
FADE = 0.99  # of what was found of a drafter, at each step that another took in its place
RATE_WEIGHT = 0.01  # of a step in the present rate of tokens per millisecond
NOISE = 0.25  # a drafter's step may bring so much more than was found, over the root of how many steps that is from
WIDER = 2.0  # steps that what is known of wider circumstances counts for, beside what is known of these
FIRST = 2  # steps of each drafter before any is compared
SHRINK = 4.0  # tokens of an answer that count as expected, before what it brought tells otherwise
LENGTHS = (1, 2, 4, 8)  # tokens of a step up to which steps count as alike
LONG = 4  # tokens of a step before the last that make it a long one

Circumstances = tuple[object, ...]


@dataclass(slots=True)
class Found:
    """Of a drafter's newest steps in some circumstances: sums of tokens and milliseconds, and how many they are."""

    tokens: float = 0.0
    ms: float = 0.0
    steps: float = 0.0

    def add(self, tokens: int, ms: float) -> None:
        """Count a step."""
        self.fade(KEEP)
        self.tokens, self.ms, self.steps = self.tokens + tokens, self.ms + ms, self.steps + 1

    def fade(self, share: float) -> None:
        """What was found counts less: it was some time ago."""
        self.tokens, self.ms, self.steps = share * self.tokens, share * self.ms, share * self.steps

    def scaled(self, by: float) -> Found:
        """With so many times the tokens."""
        return Found(by * self.tokens, self.ms, self.steps)

    def within(self, wider: Found) -> Found:
        """Beside what was found in wider circumstances, which counts for a few steps at most."""
        share = min(WIDER / wider.steps, 1.0) if wider.steps > 0 else 0.0
        tokens, ms = self.tokens + share * wider.tokens, self.ms + share * wider.ms
        return Found(tokens, ms, self.steps + share * wider.steps)

    def net(self, rate: float) -> float:
        """Tokens that a step may well bring, less what its time is worth at `rate` tokens per millisecond."""
        if self.steps <= 0:
            return math.inf
        tokens = self.tokens / self.steps
        return tokens * (1 + NOISE / math.sqrt(self.steps)) - rate * self.ms / self.steps


@dataclass(slots=True)
class Answer:
    """What steps of the present answer brought beside what was expected of them, in tokens by drafter."""

    brought: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    expected: dict[int, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, at: int, tokens: int, known: Found) -> None:
        """Count a step of drafter `at`, of which so much was known."""
        if known.steps > 0:
            self.brought[at] += tokens
            self.expected[at] += known.tokens / known.steps

    def factor(self, at: int) -> float:
        """Tokens of drafter `at` for each that is expected elsewhere: as all drafters' here, where it has few of its
        own."""
        here = (sum(self.brought.values()) + SHRINK) / (sum(self.expected.values()) + SHRINK)
        return (self.brought[at] + SHRINK * here) / (self.expected[at] + SHRINK)


@dataclass(slots=True)
class Ledger:
    """What was found of all drafters, and the present rate."""

    found: dict[tuple[Circumstances, int], Found] = field(default_factory=lambda: defaultdict(Found))
    tried: dict[tuple[Part, int], int] = field(default_factory=lambda: defaultdict(int))
    tokens: float = 0.0
    ms: float = 0.0
    steps: int = 0

    @property
    def rate(self) -> float:
        return self.tokens / self.ms if self.ms > 0 else 0.0

    def add(self, levels: Sequence[Circumstances], part: Part, at: int, drafters: int, tokens: int, ms: float) -> None:
        """Count a step of drafter `at`."""
        self.steps += 1
        weight = max(RATE_WEIGHT, 1 / self.steps)
        self.tokens += weight * (tokens - self.tokens)
        self.ms += weight * (ms - self.ms)
        self.tried[part, at] += 1
        for level in levels:
            for other in range(drafters):
                if other == at:
                    self.found[level, at].add(tokens, ms)
                elif (level, other) in self.found:
                    self.found[level, other].fade(FADE)

    def known(self, levels: Sequence[Circumstances], at: int) -> Found:
        """What is known of a drafter in the narrowest circumstances, the wider ones beside it."""
        known = Found()
        for level in levels:
            known = self.found[level, at].within(known)
        return known


class SeveralPolicy:
    """Implements `policy.base.Policy`. `policies`: one per drafter, in the order in which they were loaded."""

    def __init__(self, policies: Sequence[LearnedPolicy]) -> None:
        self.policies = tuple(policies)
        self.kinds = [one.kind for one in policies]
        self._drafting = [at for at, one in enumerate(policies) if not one.copies_only]
        self._copying = next((at for at, one in enumerate(policies) if one.copies_only), None)
        self._ledger, self._answer = Ledger(), Answer()
        self._steps: list[tuple[int, int]] = []  # of the answer: drafter and tokens
        self._at = 0
        self._chosen = False  # for the step under way
        self._why = ""
        self._knobs: Knobs | None = None

    @property
    def current(self) -> LearnedPolicy:
        """The one that decides the step under way."""
        return self.policies[self._at]

    def begin(self, ids: Sequence[int], stops: frozenset[int]) -> None:
        for one in self.policies:
            one.begin(ids, stops)
        self._steps.clear()
        self._answer = Answer()
        self._chosen = False

    def next(self, knobs: Knobs) -> Decision:
        if not self._chosen or knobs != self._knobs:
            self._choose(knobs)
            self._chosen, self._knobs = True, knobs
        return self._named(self.current.next(knobs))

    def weights(self, knobs: Knobs) -> None:
        """None: several drafters run on the host."""

    def copies_from(self, knobs: Knobs) -> None:
        """None: no device copies from the text for it."""

    def plan(self, knobs: Knobs, root: int, drafts: Candidates, deepest: int) -> Plan | None:
        self.next(knobs)
        plan = self.current.plan(knobs, root, drafts, deepest)
        return plan and replace(plan, decision=self._named(plan.decision))

    def observe(self, step: StepEvent) -> None:
        ms = step.stages.total - step.stages.host
        if ms > 0:
            self._answer.add(self._at, len(step.tokens), self._ledger.known(self._levels(), self._at))
            self._ledger.add(self._levels(), self._part, self._at, len(self.policies), len(step.tokens), ms)
        for at, one in enumerate(self.policies):
            if at == self._at:
                one.observe(step)
            else:
                one.said(step.tokens)
        self._steps.append((self._at, len(step.tokens)))
        self._chosen = False

    def said(self, tokens: Sequence[int]) -> None:
        for one in self.policies:
            one.said(tokens)
        self._chosen = False

    def end(self) -> None:
        for one in self.policies:
            one.end()

    def found(self) -> tuple[FoundRow, ...]:
        """What was learned of the drafter of the newest step."""
        return self.current.found()

    @property
    def _part(self) -> Part:
        return self.policies[0].part

    def _levels(self) -> list[Circumstances]:
        """The circumstances of the step under way, the widest first."""
        part, steps = self._part, self._steps
        last = (steps[-1][0], sum(steps[-1][1] > length for length in LENGTHS)) if steps else None
        before = steps[-2][1] >= LONG if len(steps) > 1 else None
        return [(part,), (part, last), (part, last, before)]

    def _known(self, levels: Sequence[Circumstances], at: int) -> Found:
        """What is known of a drafter, for this answer."""
        return self._ledger.known(levels, at).scaled(self._answer.factor(at))

    def _choose(self, knobs: Knobs) -> None:
        """Pick the drafter of the next step and say why."""
        self._why = ""
        if knobs.mode != "auto" or knobs.draft != "auto" or not self._drafting:
            self._at = self.kinds.index(knobs.draft) if knobs.draft in self.kinds else 0
            return
        ledger, levels, part = self._ledger, self._levels(), self._part
        untried = [at for at in self._drafting if ledger.tried[part, at] < FIRST]
        if untried:
            self._at = untried[0]
            self._why = f"{self.kinds[self._at]} is tried"
            return
        nets = {at: self._known(levels, at).net(ledger.rate) for at in self._drafting}
        self._at = max(nets, key=lambda at: nets[at])
        if part == "answer" and not self._steps:
            # The first step of an answer tells most of its text where it may reach far.
            most = max(self.policies[at].block for at in self._drafting)
            self._at = max((at for at in nets if self.policies[at].block == most), key=lambda at: nets[at])
            self._why = f"{self.kinds[self._at]} begins: its block reaches furthest"
            return
        copied = (
            self.policies[self._copying].copies_bring(knobs, ledger.rate) if self._copying is not None else -math.inf
        )
        if self._copying is not None and copied > nets[self._at]:
            self._at = self._copying
            self._why = "text: what can be copied brings more than a draft"
            return
        self._why = f"{self.kinds[self._at]} brings most here ({self._said(levels, nets)})"

    def _said(self, levels: Sequence[Circumstances], nets: dict[int, float]) -> str:
        """Each drafter's tokens and milliseconds of a step, the chosen one first."""
        parts = []
        for at in sorted(nets, key=lambda at: at != self._at):
            known = self._known(levels, at)
            parts.append(f"{self.kinds[at]} {known.tokens / known.steps:.1f} in {known.ms / known.steps:.0f} ms")
        return ", ".join(parts)

    def _named(self, decision: Decision) -> Decision:
        reason = f"{self._why}; {decision.reason}" if self._why else decision.reason
        return replace(decision, drafter=self.current.kind, reason=reason)
