"""Watches the drafters under any policy: one that never has a draft accepted is reported, one whose numbers are not
finite is left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dflash_core.drafters.capabilities import Capabilities
from dflash_core.errors import NumericsError
from dflash_core.events import StepEvent
from dflash_core.knobs import Knobs
from dflash_core.policy.arm import COPIES
from dflash_core.policy.auto import AutoPolicy
from dflash_core.policy.base import Decision, Policy, StepPlan
from dflash_core.policy.fixed import FixedPolicy
from dflash_core.turn_stats import FoundRow

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from dflash_core.drafters.ngram_table import NgramTable
    from dflash_core.tree import Candidates

MISSES = 10
"""Drafts without one accepted token after which a drafter is said not to fit; the first accepted one takes it back. One
that is right every other time misses its first 10 drafts once in 1,000 times, one that is right one time in three once
in 60. More would be late: `auto` may take some hundred tokens for each draft that is never right."""
PLAIN = Decision("plain", 0, "no other drafter is loaded")


class Watched(Policy):
    """Implements `policy.base.Policy` around `policy`. `drafter`: the capabilities of what is loaded, None for none."""

    def __init__(self, policy: Policy, drafter: Capabilities | None) -> None:
        self.policy, self._drafter = policy, drafter
        self._kinds = {one.kind for one in drafter.parts or (drafter,)} if drafter is not None else set[str]()
        self._drafts = Counter[str]()
        self._right = set[str]()
        self._failed: dict[str, str] = {}
        self._said: str | None = None  # what is wrong with drafters, for reasons; None: not put into words yet

    @classmethod
    def around(cls, policy: Policy | None, drafter: Capabilities | None) -> Watched:
        """`policy`, watched; without one, the settings decide. One that is watched already is returned."""
        return policy if isinstance(policy, Watched) else cls(policy or FixedPolicy(drafter), drafter)

    @property
    def _none(self) -> bool:
        """Whether every drafter was left out."""
        return bool(self._failed) and self._failed.keys() >= self._kinds

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know of the drafters, a line each."""
        misfits = [
            f"{_misfit(kind, self._drafts[kind])}; load the drafter that was made for it, or none"
            for kind in self._misfits
        ]
        return (*(f"{kind} is left out: {error}" for kind, error in self._failed.items()), *misfits)

    @property
    def _misfits(self) -> list[str]:
        return [
            kind for kind, drafts in self._drafts.items()
            if drafts >= MISSES and kind not in self._right and kind not in self._failed
        ]  # fmt: skip

    def reason(self, step: StepEvent) -> str:
        """A step's reason, with what is wrong with a drafter before it, where the user wants drafts."""
        if step.knobs.mode == "plain":
            return step.reason
        if self._said is None:  # kept: plain steps of a small model are short
            said = [f"{kind} is left out, its numbers are not finite; " for kind in self._failed]
            said += [f"{_misfit(kind, self._drafts[kind])}; " for kind in self._misfits]
            self._said = "".join(said)
        return self._said + step.reason

    def failed(self, kind: str, error: NumericsError) -> None:
        """Leave a drafter out from the next decision on; the step under way is decided again."""
        if kind not in self._failed:
            self._failed[kind], self._said = str(error), None
            if isinstance(self.policy, AutoPolicy):
                self.policy.leave_out(kind)
        self.policy.said(())

    # ---- Policy ----------------------------------------------------------------------------------------------------

    def begin(self, ids: Sequence[int], stops: frozenset[int]) -> None:
        self.policy.begin(ids, stops)

    def next(self, knobs: Knobs) -> Decision:
        return PLAIN if self._none else self.policy.next(knobs)

    def weights(self, knobs: Knobs) -> npt.NDArray[np.float64] | None:
        return None if self._none else self.policy.weights(knobs)

    def copies_from(self, knobs: Knobs) -> NgramTable | None:
        return None if self._none else self.policy.copies_from(knobs)

    def plan(self, knobs: Knobs, root: int, drafts: Candidates, deepest: int) -> StepPlan | None:
        return None if self._none else self.policy.plan(knobs, root, drafts, deepest)

    def asks_certain(self, knobs: Knobs) -> bool:
        return not self._none and self.policy.asks_certain(knobs)

    def observe(self, step: StepEvent, certain: Sequence[float] = ()) -> None:
        kind = step.drafter or (self._drafter.kind if self._drafter is not None and step.mode != "plain" else "")
        # That nothing repeats itself says nothing about the drafter that copies text.
        if kind and kind != COPIES and kind not in self._right and step.drafts.tokens:
            self._drafts[kind] += 1
            self._said = None
            # Where no candidate was worth verifying, the target's token shows whether the best was right.
            if step.drafts.tokens[0][0] == step.tokens[0] or set(step.tree.accepted[1:]) - set(step.tree.copied):
                self._right.add(kind)
        self.policy.observe(step, certain)

    def said(self, tokens: Sequence[int]) -> None:
        self.policy.said(tokens)

    def end(self) -> None:
        self.policy.end()

    def found(self) -> tuple[FoundRow, ...]:
        return self.policy.found()


def _misfit(kind: str, drafts: int) -> str:
    return f"{kind} does not fit this target: none of its {drafts} drafts was accepted"
