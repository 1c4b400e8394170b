"""A policy that learns nothing: it runs what the knobs ask for, and for `auto` a tree."""

from __future__ import annotations

from dflash_core.drafters.capabilities import Capabilities
from dflash_core.knobs import Knobs
from dflash_core.policy.base import Decision, Policy

SET = "drafting is set"


class FixedPolicy(Policy):
    """Implements `policy.base.Policy`. `drafter`: the capabilities of the loaded drafter, None without one."""

    def __init__(self, drafter: Capabilities | None) -> None:
        self._drafter = drafter

    def next(self, knobs: Knobs) -> Decision:
        if self._drafter is None:
            return Decision("plain", 0, SET if knobs.mode == "plain" else "no drafter is loaded")
        if knobs.mode == "plain":
            return Decision("plain", 0, SET)
        if knobs.mode == "chain":
            return Decision("chain", min(knobs.budget, self._drafter.drafted(knobs)), SET)
        return Decision("tree", knobs.budget, SET if knobs.mode == "tree" else "auto: a drafter is loaded")
