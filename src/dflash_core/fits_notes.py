"""Notes on a setup that memory has shrunk, and on what it costs, in words."""

from __future__ import annotations

from dataclasses import replace

from dflash_core.cache_types import DIVERGENCE, RECENT_SHARE
from dflash_core.fits import CEILING, MemoryEstimator, Setup, total
from dflash_core.memory import gib


def missing(estimator: MemoryEstimator, requested: Setup, available: int) -> str:
    """How much memory there is too little for `requested`, with what is left free for other things."""
    return (
        f"{gib(max(total(estimator, requested) + estimator.spare(available) - available, 0))} more are needed for that"
    )


def shrunk_note(estimator: MemoryEstimator, setup: Setup, available: int) -> str:
    """A note if there was no memory for the usual context, where none was asked for."""
    usual = min(CEILING, estimator.longest_context)
    if setup.context >= usual:
        return ""
    more, left = missing(estimator, replace(setup, context=usual), available), available - total(estimator, setup)
    little = f"; only {gib(max(left, 0))} are left free" if left < estimator.spare(available) // 2 else ""
    return f"the context is {setup.context:,} positions, not {usual:,}: {more}{little}"


def trees_end(budget: int) -> str:
    """A note if memory is not reserved for the largest trees."""
    return f"trees end at a budget of {budget} here: there is no memory left for larger ones"


def cache_note(kv: str) -> str:
    """What keys and values of this type cost; empty where that is nothing, or was not measured."""
    names, plus, _ = kv.partition("+")
    found = DIVERGENCE.get(names)
    if not found:
        return ""
    note = f"{names} costs a mean KL divergence of {found:.1e} nats (demo model, against f16)"
    return f"{note}, {kv} about {RECENT_SHARE:.0%} of that" if plus else note


def cut_note(requested: int | None, context: int) -> tuple[str, ...]:
    """A note if the model has fewer positions than requested. `context`: the positions that it gets."""
    if requested is None or requested <= context:
        return ()
    return (f"{requested:,} positions were requested, the model has {context:,}",)
