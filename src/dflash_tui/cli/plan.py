"""`plan`: how much memory a pair needs and what fits, before anything is loaded. It reads headers only."""

from __future__ import annotations

from typing import Any

from dflash_core.fits import MemoryPlan, cut_note, plan
from dflash_tui.session import LoadRequest
from dflash_tui.terminal.output import write_json, write_out
from dflash_tui.text import fits


def run(request: LoadRequest, memory: int, *, as_json: bool = False) -> int:
    """Plan what the command line asks for, for `memory` bytes (0: for this machine). Raises DFlashError."""
    found = plan_for(request, memory)
    if as_json:
        write_json(facts(found))
    else:
        lines = [*cut_note(request.context, found.setup.context), *fits.lines(found)]
        write_out("".join(f"{line}\n" for line in lines))
    return 0


def plan_for(request: LoadRequest, memory: int = 0) -> MemoryPlan:
    """What `request` would load. Imports torch, for the overhead of its allocator."""
    from dflash_tui.reckoning import reckoner_for

    reckoner = reckoner_for(request, memory)
    return plan(reckoner, request.setup(reckoner))


def facts(plan: MemoryPlan) -> dict[str, Any]:
    """A plan as JSON."""
    return {
        "card": plan.machine,
        "context": plan.setup.context,
        "kv": plan.setup.kv,
        "embedding": plan.setup.embedding,
        "prompt_rows": plan.setup.rows,
        "components": [{"name": one.name, "bytes": one.bytes} for one in plan.components],
        "total": plan.total,
        "available": plan.available,
        "fits": plan.fits,
        "context_that_fits": dict(plan.context_that_fits),
        "remedies": [
            {
                "what": fits.remedy_words(one, plan.setup),
                "options": fits.options(one, plan.setup),
                "total": one.total,
                "saves": one.saves,
                "context": one.setup.context,
                "kv": one.setup.kv,
            }
            for one in plan.remedies
        ],
    }
