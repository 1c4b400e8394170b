"""Watches the drafters under any policy: one that never has a draft accepted is reported, one whose numbers are not
finite is left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dflash_core.errors import NumericsError
from dflash_core.events import StepEvent

MISSES = 10
"""Drafts without one accepted token after which a drafter is said not to fit; the first accepted one takes it back. One
that is right every other time misses its first 10 drafts once in 1,000 times, one that is right one time in three once
in 60. More would be late: `auto` may take some hundred tokens for each draft that is never right."""
COPIES = "ngram"
"""The drafter that copies text and has no model: that nothing repeats itself says nothing about it."""


class Watch:
    """What steps have shown of drafters. `kinds`: of those that are loaded."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self._kinds = tuple(kinds)
        self._drafts = Counter[str]()
        self._right = set[str]()
        self._said: str | None = None  # what is wrong with drafters, for reasons; None: not put into words yet
        self.left_out: dict[str, str] = {}
        """By kind why a drafter is left out."""

    @property
    def none_left(self) -> bool:
        """Whether every drafter was left out."""
        return bool(self.left_out) and self.left_out.keys() >= set(self._kinds)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know of the drafters, a line each."""
        misfits = [
            f"{_misfit(kind, self._drafts[kind])}; load the drafter that was made for it, or none"
            for kind in self._misfits
        ]
        return (*(f"{kind} is left out: {error}" for kind, error in self.left_out.items()), *misfits)

    @property
    def _misfits(self) -> list[str]:
        return [
            kind for kind, drafts in self._drafts.items()
            if drafts >= MISSES and kind not in self._right and kind not in self.left_out
        ]  # fmt: skip

    def reason(self, step: StepEvent) -> str:
        """A step's reason, with what is wrong with a drafter before it, where the user wants drafts."""
        if step.knobs.mode == "plain":
            return step.reason
        if self._said is None:  # kept: plain steps of a small model are short
            said = [f"{kind} is left out, its numbers are not finite; " for kind in self.left_out]
            said += [f"{_misfit(kind, self._drafts[kind])}; " for kind in self._misfits]
            self._said = "".join(said)
        return self._said + step.reason

    def leave_out(self, kind: str, error: NumericsError) -> None:
        """Leave a drafter out."""
        if kind not in self.left_out:
            self.left_out[kind], self._said = str(error), None

    def count(self, step: StepEvent) -> None:
        """Count a step."""
        kind = step.drafter or (self._kinds[0] if len(self._kinds) == 1 and step.mode != "plain" else "")
        if not kind or kind == COPIES or kind in self._right or not step.drafts.tokens:
            return
        self._drafts[kind] += 1
        self._said = None
        # Where no candidate was worth verifying, the target's token shows whether the best was right.
        if step.drafts.tokens[0][0] == step.tokens[0] or set(step.tree.accepted[1:]) - set(step.tree.copied):
            self._right.add(kind)


def _misfit(kind: str, drafts: int) -> str:
    return f"{kind} does not fit this target: none of its {drafts} drafts was accepted"
