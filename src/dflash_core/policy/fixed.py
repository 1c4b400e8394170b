"""Today's rule: what the knobs ask for, and with `auto` a tree whenever a drafter is loaded."""

from __future__ import annotations

from dflash_core.drafters.capabilities import Capabilities
from dflash_core.events import StepEvent
from dflash_core.knobs import Knobs
from dflash_core.policy.base import Decision


class FixedPolicy:
    """Implements `policy.base.Policy` for what a loaded drafter can do; None: there is none."""

    def __init__(self, drafter: Capabilities | None) -> None:
        self._drafter = drafter

    def next(self, knobs: Knobs) -> Decision:
        if self._drafter is None:
            return Decision("ar", 0, "asked for" if knobs.mode == "ar" else "no drafter is loaded")
        if knobs.mode == "ar":
            return Decision("ar", 0, "asked for")
        if knobs.mode == "chain":
            return Decision("chain", min(knobs.budget, self._drafter.depths), "asked for")
        return Decision("tree", knobs.budget, "asked for" if knobs.mode == "tree" else "auto: a drafter is loaded")

    def observe(self, step: StepEvent) -> None:
        """Nothing is learned."""
