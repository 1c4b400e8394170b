"""The page of a memory plan as text, for a terminal and for pipes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dflash_core.fits import MemoryPlan
from dflash_core.memory import gib
from dflash_tui.application.fits import options, reduced, remedy_words, smaller_words, verdict
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
    yield f"  {fit('total', NAME)}{verdict(plan)}"
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
