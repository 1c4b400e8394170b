"""A policy that learns nothing: it runs what the knobs ask for, and for `auto` a tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dflash_core.drafters.capabilities import Capabilities
from dflash_core.events import FoundRow, StepEvent
from dflash_core.knobs import Knobs
from dflash_core.policy.base import Decision, Plan

if TYPE_CHECKING:
    from dflash_core.tree import Candidates

SET = "drafting is set"


class FixedPolicy:
    """Implements `policy.base.Policy`. `drafter`: the capabilities of the loaded drafter, None without one."""

    def __init__(self, drafter: Capabilities | None) -> None:
        self._drafter = drafter

    def begin(self, ids: Sequence[int], stops: frozenset[int]) -> None:
        """The text makes no difference."""

    def next(self, knobs: Knobs) -> Decision:
        if self._drafter is None:
            return Decision("plain", 0, SET if knobs.mode == "plain" else "no drafter is loaded")
        if knobs.mode == "plain":
            return Decision("plain", 0, SET)
        if knobs.mode == "chain":
            return Decision("chain", min(knobs.budget, self._drafter.drafted(knobs)), SET)
        return Decision("tree", knobs.budget, SET if knobs.mode == "tree" else "auto: a drafter is loaded")

    def weights(self, knobs: Knobs) -> None:
        """None: trees are what the knobs describe."""

    def copies_from(self, knobs: Knobs) -> None:
        """None: trees are what the knobs describe."""

    def plan(self, knobs: Knobs, root: int, drafts: Candidates, deepest: int) -> Plan | None:
        """None: the tree is what the knobs describe."""
        return None

    def asks_certain(self, knobs: Knobs) -> bool:
        """False: nothing depends on it."""
        return False

    def observe(self, step: StepEvent, certain: Sequence[float] = ()) -> None:
        """Nothing is learned."""

    def said(self, tokens: Sequence[int]) -> None:
        """The text makes no difference."""

    def end(self) -> None:
        """Nothing is kept."""

    def found(self) -> tuple[FoundRow, ...]:
        """Empty: nothing is learned."""
        return ()
