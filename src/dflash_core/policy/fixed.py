"""A policy that learns nothing: it runs what the knobs ask for, and for `auto` a tree."""

from __future__ import annotations

from dflash_core.drafters.capabilities import Capabilities
from dflash_core.knobs import Knobs
from dflash_core.policy.base import Decision, Policy

SET = "drafting is set"


class FixedPolicy(Policy):
    """Implements `policy.base.Policy`. `drafter`: the capabilities of the loaded drafter, None without one."""

    def __init__(self, drafter: Capabilities | None) -> None:
        super().__init__([one.kind for one in drafter.parts or (drafter,)] if drafter is not None else [])
        self._drafter = drafter

    def _next(self, knobs: Knobs) -> Decision:
        return as_set(knobs, self._drafter)


def as_set(knobs: Knobs, drafter: Capabilities | None) -> Decision:
    """What the knobs ask for."""
    if drafter is None:
        return Decision("plain", 0, SET if knobs.mode == "plain" else "no drafter is loaded")
    if knobs.mode == "plain":
        return Decision("plain", 0, SET)
    if knobs.mode == "chain":
        return Decision("chain", min(knobs.budget, drafter.drafted(knobs)), SET)
    return Decision("tree", knobs.budget, SET if knobs.mode == "tree" else "auto: a drafter is loaded")
