"""`plan`: how much memory a pair needs and what fits, before anything is loaded. The command reads only headers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from dflash_core.bench.family_models import MODELS
from dflash_core.fits import DESKTOP, MemoryPlan, plan, with_desktop
from dflash_core.fits_notes import cut_note
from dflash_core.memory import gib
from dflash_tui.application.fits import options, reduced, remedy_words, smaller_words, verdict
from dflash_tui.application.hub.catalogue import named
from dflash_tui.application.hub.files import begun, fetched
from dflash_tui.application.hub.walk import downloads
from dflash_tui.application.memory_estimate import estimator_for, holders_for
from dflash_tui.application.session import LoadRequest
from dflash_tui.cli.options import Invocation
from dflash_tui.terminal.output import write_json, write_out
from dflash_tui.text.bars import bar, fit

NAME, SIZE, BAR = 14, 10, 30


def lines(plan: MemoryPlan, desktop: Mapping[str, int] | None = None) -> Iterator[str]:
    """The whole plan as text. `desktop`: the longest contexts where a desktop holds a part of the card."""
    setup = plan.setup
    yield f"{setup.context:,} positions, keys and values as {setup.kv}; computed for {plan.machine}"
    yield ""
    scale = max(plan.total, plan.available, 1)
    for one in plan.components:
        row = f"  {fit(one.name, NAME)}{gib(one.bytes):>{SIZE}}  {bar(one.bytes / scale, BAR):<{BAR}}  {one.detail}"
        yield row.rstrip()
    total, _, words = verdict(plan).partition(" of ")
    yield f"  {fit('total', NAME)}{total:>{SIZE}} of {words}"
    for text in reduced(setup) if plan.fits else ():
        yield f"  {text}"
    yield ""
    beside = desktop or {}
    yield f"the longest context that fits, by type of keys and values{', and beside a desktop' if beside else ''}"
    for kv, context in plan.context_that_fits.items():
        found = [context, *([beside[kv]] if beside else [])]
        yield f"  {fit(kv, NAME)}" + "".join(f"{one:>{SIZE},}" if one else f"{'none':>{SIZE}}" for one in found)
    if plan.fits:
        return
    yield ""
    smaller = smaller_words(plan)
    yield "what would help" if plan.remedies or smaller else "no setting makes it fit: take a smaller model"
    for index, remedy in enumerate(plan.remedies, 1):
        yield f"  {index}  {remedy_words(remedy, setup)}: {gib(remedy.total)}, {gib(remedy.saves)} less"
        yield f"     {options(remedy, setup)}"
    if smaller:
        yield f"  {len(plan.remedies) + 1}  {smaller}"


EMPTY = f"nothing else on the card; beside a desktop: {gib(DESKTOP)} used by other programs, 0.5 to 1.5 GiB are usual"
FREE = "what is free on this machine now"
SHAPED = "weights as {}, of the published shapes: files that mix types are 4 to 8 % larger"


def run(call: Invocation) -> int:
    """Plan what the command line asks for, for a card of --memory or for this machine. Raises DFlashError."""
    request, memory = of_catalogue(call.request), call.args.memory
    estimator = estimator_for(request, memory)
    found = plan(estimator, request.setup(estimator))
    desktop = with_desktop(estimator, found) if memory else {}
    if call.args.json:
        write_json({**facts(found), "context_beside_a_desktop": desktop})
        return 0
    holders = holders_for(request, memory)
    assumed = [SHAPED.format(MODELS[request.shapes[0]].mix)] if request.shapes[0] else []
    assumed += [EMPTY if memory else FREE]
    assumed += [f"other programs use the rest: {holders}"] if holders else []
    page = [*cut_note(request.context, found.setup.context), *lines(found, desktop), "", "assumed"]
    write_out("".join(f"{line}\n" for line in (*page, *(f"  {one}" for one in assumed))))
    return 0


def of_catalogue(request: LoadRequest) -> LoadRequest:
    """`request` for the files of a pair that it names, or for its shapes before it is fetched."""
    pair = named(request.target)
    if pair is None:
        return request
    target, draft = fetched(pair, downloads())
    whole = begun(pair, downloads())[1]
    return replace(request, target=target, draft=request.draft or draft) if whole else pair.planned(request)


def facts(plan: MemoryPlan) -> dict[str, Any]:
    setup = plan.setup
    return {
        "card": plan.machine, "context": setup.context, "kv": setup.kv, "embedding": setup.embedding,
        "expert_layers_in_main_memory": setup.experts, "cached_experts_of_each_layer": setup.cached,
        "prompt_rows": setup.rows, "components": [{"name": one.name, "bytes": one.bytes} for one in plan.components],
        "total": plan.total, "available": plan.available, "fits": plan.fits,
        "context_that_fits": dict(plan.context_that_fits), "smaller_target": plan.smaller,
        "remedies": [
            {
                "what": remedy_words(one, setup), "options": options(one, setup), "total": one.total,
                "saves": one.saves, "context": one.setup.context, "kv": one.setup.kv,
            }
            for one in plan.remedies
        ],
    }  # fmt: skip
