"""`auto` with several drafters loaded: before each step it picks one by the expected tokens and time of its step.

Every drafter has a policy of its own, which learns about that drafter alone. One `Chooser` (`choosing.py`) picks the
policy that decides a step, or a step without drafts, as it does for a single drafter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dflash_core.events import StepEvent
from dflash_core.knobs import Knobs
from dflash_core.policy.base import Decision, Policy, StepPlan
from dflash_core.policy.choosing import Chooser, Expected, Picked
from dflash_core.policy.learned import LearnedPolicy
from dflash_core.policy.pace import START_ROWS, Pace
from dflash_core.turn_stats import FoundRow

if TYPE_CHECKING:
    from dflash_core.tree import Candidates


class SeveralPolicy(Policy):
    """Implements `policy.base.Policy`. `policies`: one per drafter, in the order in which they were loaded."""

    def __init__(self, policies: Sequence[LearnedPolicy]) -> None:
        self.policies = tuple(policies)
        self.kinds = [one.kind for one in policies]
        self._drafting = [one for one in policies if not one.copies_only]
        # A step without a draft is decided by the policy that copies text, or by the first.
        self._resting = next((one for one in policies if one.copies_only), self.policies[0])
        self._chooser = Chooser([one.kind for one in self._drafting])
        blocks = [one.block for one in self._drafting]
        self._furthest = blocks.index(max(blocks)) if len(set(blocks)) > 1 else None
        self._resting.join(self._chooser, 0)  # it counts the steps without a draft
        for at, one in enumerate(self._drafting):
            one.join(self._chooser, at)
        self._pace = Pace()
        self._current = self.policies[0]
        self._chosen = False  # for the step under way
        self._picked: Picked | None = None
        self._why = ""
        self._knobs: Knobs | None = None
        self._left_out = set[str]()

    @property
    def current(self) -> LearnedPolicy:
        """The policy that decides the step under way."""
        return self._current

    def leave_out(self, kind: str) -> None:
        """Never draft with this drafter again."""
        self._left_out.add(kind)

    def begin(self, ids: Sequence[int], stops: frozenset[int]) -> None:
        for one in self.policies:
            one.begin(ids, stops)
        self._chosen = False

    def next(self, knobs: Knobs) -> Decision:
        if not self._chosen or knobs != self._knobs:
            self._choose(knobs)
            self._chosen, self._knobs = True, knobs
        return self._named(self.current.next(knobs))

    def plan(self, knobs: Knobs, root: int, drafts: Candidates, deepest: int) -> StepPlan | None:
        self.next(knobs)
        plan = self.current.plan(knobs, root, drafts, deepest)
        return plan and replace(plan, decision=self._named(plan.decision))

    def asks_certain(self, knobs: Knobs) -> bool:
        """Whether one of them asks."""
        return any(one.asks_certain(knobs) for one in self.policies)

    def observe(self, step: StepEvent, certain: Sequence[float] = ()) -> None:
        drafted = step.mode != "plain" if self._picked is None else self._picked.at is not None
        spent = step.stages.total - step.stages.host
        if spent > 0 and self._picked is not None:
            self._pace.add(len(step.tokens), spent, self._unit, drafted=drafted)
        for one in self.policies:
            if one is self.current:
                one.observe(step, certain)
                continue
            one.said(step.tokens)
            if not drafted:
                one.costs.add(step, drafted=False)  # its time is the same for all
        self._chosen = False

    def said(self, tokens: Sequence[int]) -> None:
        for one in self.policies:
            one.said(tokens)
        self._chosen = False

    def end(self) -> None:
        for one in self.policies:
            one.end()

    def found(self) -> tuple[FoundRow, ...]:
        """What was learned about the drafter of the newest step."""
        return self.current.found()

    @property
    def _unit(self) -> float:
        return self._resting.costs.curve()[START_ROWS]

    def _choose(self, knobs: Knobs) -> None:
        """Pick the drafter of the next step, or none, and note the reason."""
        self._why, self._picked = "", None
        free = [at for at, one in enumerate(self._drafting) if one.kind not in self._left_out]
        if knobs.mode not in ("auto", "tree") or knobs.draft != "auto" or not free:
            left = [kind for kind in self.kinds if kind not in self._left_out]
            self._current = self.policies[self.kinds.index(knobs.draft if knobs.draft in left else left[0])]
            return
        plain = self._resting.costs.plain
        rate = max(self._pace.rate(self._unit), 1 / plain)
        none = -math.inf if knobs.mode == "tree" else self._resting.rest(knobs, rate).brings
        expected = [one.expected() for one in self._drafting]
        part = self._resting.place
        furthest = self._furthest if part == "answer" else None
        sure = self._resting.costs.knows_plain
        known = {at: expected[at] for at in free}
        picked = self._chooser.pick(known, none, rate * plain, sure=sure, furthest=furthest, part=part)
        self._picked = picked
        self._current = self._resting if picked.at is None else self._drafting[picked.at]
        self._current.take(knobs, picked)
        self._why = self._said(picked, expected)

    def _said(self, picked: Picked, expected: Sequence[Expected]) -> str:
        """The reason: a try, a start, or each drafter's tokens and time of a step, the picked one first."""
        if picked.at is None and picked.tries:
            return "no draft is tried"
        if picked.tries:
            return f"{self._current.kind} is tried"
        if picked.lost > 0:
            return f"{self._current.kind} begins: its block reaches furthest"
        order = sorted(range(len(expected)), key=lambda at: at != picked.at)
        parts = [f"{self._drafting[at].kind} {expected[at].tokens:.1f} in {expected[at].plain:.1f}" for at in order]
        who = "plain decoding" if picked.at is None else self._current.kind
        return f"{who} is fastest here (tokens in plain steps: {', '.join(parts)})"

    def _named(self, decision: Decision) -> Decision:
        reason = f"{self._why}; {decision.reason}" if self._why else decision.reason
        return replace(decision, drafter=self.current.kind, reason=reason)
