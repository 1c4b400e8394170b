"""`auto` with several drafters loaded: before each step the one that brings the most tokens per millisecond here.

Every drafter has a policy of its own, with what was learned of it alone. Which of them decides a step is chosen by the
speed of its own steps, kept for reasoning and answers apart. Speeds that are little known, or were measured long ago,
count as somewhat better than they were, so that one that may have become the best is tried again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dflash_core.events import FoundRow, StepEvent
from dflash_core.knobs import Knobs
from dflash_core.policy.base import Decision, Plan
from dflash_core.policy.learned import LearnedPolicy
from dflash_core.policy.pair import PARTS, Part

if TYPE_CHECKING:
    from dflash_core.tree import Candidates

KEEP = 0.96  # of a sum of steps, at each further one
FADE = 0.99  # of what a speed counts, at each step that another drafter took
NEW_ANSWER = 0.5  # of what speeds count, where another answer begins
NOISE = 0.6  # a step's tokens spread so far around their mean, over that mean
FIRST = 3  # steps before a speed is believed at all


@dataclass(slots=True)
class Speed:
    """Of a drafter's newest steps: sums of tokens and milliseconds, and how many steps they count for."""

    tokens: float = 0.0
    ms: float = 0.0
    steps: float = 0.0
    tried: int = 0  # steps in all

    @property
    def rate(self) -> float:
        """Tokens per millisecond."""
        return self.tokens / self.ms if self.ms > 0 else 0.0

    @property
    def hoped(self) -> float:
        """The most that the rate may well be."""
        return self.rate * (1 + NOISE / math.sqrt(self.steps)) if self.steps > 0 else math.inf

    def add(self, tokens: int, ms: float) -> None:
        """Count one of its steps."""
        self.tokens, self.ms = KEEP * self.tokens + tokens, KEEP * self.ms + ms
        self.steps, self.tried = KEEP * self.steps + 1, self.tried + 1

    def fade(self, share: float) -> None:
        """What was found counts less: it was some time ago."""
        self.tokens, self.ms, self.steps = share * self.tokens, share * self.ms, share * self.steps


@dataclass(slots=True)
class Speeds:
    """Of all drafters, in reasoning or in answers."""

    by_drafter: list[Speed] = field(default_factory=list)

    def best(self) -> int:
        """The one to take now: one that was hardly tried, else the most promising; the first of equals."""
        new = [at for at, one in enumerate(self.by_drafter) if one.tried < FIRST]
        if new:
            return new[0]
        return max(range(len(self.by_drafter)), key=lambda at: self.by_drafter[at].hoped)


class SeveralPolicy:
    """Implements `policy.base.Policy`. `policies`: one per drafter, in the order in which they were loaded."""

    def __init__(self, policies: Sequence[LearnedPolicy]) -> None:
        self.policies = tuple(policies)
        self._speeds: dict[Part, Speeds] = {part: Speeds([Speed() for _ in policies]) for part in PARTS}
        self._at = 0
        self._chosen = False  # for the step under way
        self._why = ""
        self._knobs: Knobs | None = None

    @property
    def kinds(self) -> list[str]:
        return [one.kind for one in self.policies]

    @property
    def current(self) -> LearnedPolicy:
        """The one that decides the step under way."""
        return self.policies[self._at]

    @property
    def _now(self) -> Speeds:
        return self._speeds[self.policies[0].part]

    def begin(self, ids: Sequence[int], stops: frozenset[int]) -> None:
        for one in self.policies:
            one.begin(ids, stops)
        for speeds in self._speeds.values():
            for speed in speeds.by_drafter:
                speed.fade(NEW_ANSWER)
        self._chosen = False

    def next(self, knobs: Knobs) -> Decision:
        if not self._chosen or knobs != self._knobs:
            self._choose(knobs)
        return self._named(self.current.next(knobs))

    def weights(self, knobs: Knobs) -> None:
        """None: several drafters run on the host."""

    def plan(self, knobs: Knobs, root: int, drafts: Candidates, deepest: int) -> Plan | None:
        self.next(knobs)
        plan = self.current.plan(knobs, root, drafts, deepest)
        return plan and replace(plan, decision=self._named(plan.decision))

    def observe(self, step: StepEvent) -> None:
        ms = step.stages.total - step.stages.host
        for at, speed in enumerate(self._now.by_drafter):
            if at != self._at:
                speed.fade(FADE)
            elif ms > 0:
                speed.add(len(step.tokens), ms)
        for at, one in enumerate(self.policies):
            if at == self._at:
                one.observe(step)
            else:
                one.said(step.tokens)
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

    def _choose(self, knobs: Knobs) -> None:
        free = knobs.mode == "auto" and knobs.draft == "auto"
        self._chosen, self._knobs = True, knobs
        if not free:
            self._at = self.kinds.index(knobs.draft) if knobs.draft in self.kinds else 0
            self._why = ""
            return
        speeds = self._now
        self._at = speeds.best()
        mine = speeds.by_drafter[self._at]
        known = [
            f"{kind} {one.rate * 1e3:.0f}"
            for at, (kind, one) in enumerate(zip(self.kinds, speeds.by_drafter))
            if at != self._at and one.ms > 0
        ]
        beside = f"; {', '.join(known)}" if known else ""
        if mine.tried < FIRST:
            self._why = f"{self.current.kind} is tried{beside and f' ({beside[2:]} tok/s)'}"
        elif mine.rate < max(one.rate for one in speeds.by_drafter):
            self._why = f"{self.current.kind} is tried again ({mine.rate * 1e3:.0f} tok/s{beside})"
        else:
            self._why = f"{self.current.kind} is fastest ({mine.rate * 1e3:.0f} tok/s{beside})"

    def _named(self, decision: Decision) -> Decision:
        reason = f"{self._why}; {decision.reason}" if self._why else decision.reason
        return replace(decision, drafter=self.current.kind, reason=reason)
