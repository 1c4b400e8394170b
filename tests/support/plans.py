"""A memory plan in one call."""

from __future__ import annotations

from pathlib import Path

from dflash_core.cache_types import AUTO, checked
from dflash_core.fits import DEFAULT_CARD, CardOptions, MemoryPlan, plan, requested_setup
from dflash_core.loading import estimator_of


def plan_pair(
    target: str | Path,
    draft: str | Path | None = None,
    device: str = "auto",
    *,
    context: int | None = None,
    kv: str = AUTO,
    memory: int = 0,
    card: CardOptions = DEFAULT_CARD,
) -> MemoryPlan:
    """The plan of a pair, with context and type of cache as they are requested of a load."""
    kind = checked(kv)
    estimator = estimator_of(target, draft, device, memory=memory, card=card)
    return plan(estimator, requested_setup(estimator, context, kind))
