"""Models as text for rows and details: what each is, whether it fits, its drafter. No widget here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from textual.content import Content
from textual.widgets.option_list import Option

from dflash_core.clean import one_line
from dflash_core.memory import gib
from dflash_tui.application.amounts import short
from dflash_tui.application.hub.fitting import FitCheck
from dflash_tui.application.hub.found import Found, PassedOver, counted_others

DIM = "$foreground 75%"
DEMO = "demo"
FILE, PROFILE, PAIR, TYPED = "file ", "profile ", "pair ", "typed"  # beginnings of the ids of rows


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A drafter that a target may get: in words, and as it is loaded."""

    words: str
    draft: Path | None


def at_home(path: Path) -> str:
    home = Path.home()
    return one_line(f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path))


def choices(one: Found) -> list[ModelChoice]:
    """What a target can draft with, the best guess first."""
    belongs = [ModelChoice(drafter.name, drafter.path) for drafter in one.drafters or () if drafter.belongs]
    others = [
        ModelChoice(f"{drafter.name} (of another?)", drafter.path)
        for drafter in one.drafters or ()
        if not drafter.belongs
    ]
    own = ModelChoice("its own MTP head" if one.header.own_head else "no drafter", None)
    return [*belongs, own, ModelChoice("n-grams", Path("ngram")), *others]


def option(
    id: str,
    name: str,
    about: str,
    found: Found | None = None,
    *,
    choice: ModelChoice | None = None,
    fit: FitCheck | None = None,
    gone: Path | None = None,
    present: bool = False,
    fetched: str = "",
    size: int = 0,
) -> Option:
    """A row: the name, and a summary below. Of a pair that can be fetched, `fetched` is the download's progress, and
    `size` is about how many bytes it has."""
    first = ["● " if present else "  ", (one_line(name), "bold")]
    parts: list[tuple[str, str]] = []
    if found is None:
        parts.append((one_line(about), DIM))
    else:
        first.append((f"   {one_line(about)}", DIM))
        header = found.header
        parts.append((f"{gib(found.size)} · {_with(choice)} · {header.architecture}, {header.types}", DIM))
    if fetched:
        parts = [(one_line(fetched), "bold $primary"), (" · ", DIM), *parts]
    if gone is not None:
        parts.insert(0, (f"{at_home(gone)} is not there · ", "$error"))
    elif fit is not None:
        parts.insert(0, (f"about {gib(size)}, {fit.words}" if size else fit.words, colour(fit)))
        parts.insert(1, (" · ", DIM))
    return Option(Content.assemble(*first, "\n  ", *parts), id=id)


def _with(choice: ModelChoice | None) -> str:
    if choice is None:
        return "looking for its drafter"
    return choice.words if choice.draft is None else f"+ {choice.words}"


def colour(fit: FitCheck) -> str:
    return DIM if fit.why else "$success" if not fit.short else "$warning" if fit.context else "$error"


def beside(one: Found, drafters: Sequence[ModelChoice], chosen: ModelChoice | None, fit: FitCheck | None) -> Content:
    """The details of a model; Enter takes the drafter `chosen`."""
    header = one.header
    parts: list[tuple[str, str] | str] = [(f"{one_line(header.title)}\n", "bold"), (f"{at_home(one.path)}\n\n", DIM)]
    facts = (
        ("found in", one.where),
        ("architecture", header.architecture),
        ("weights", f"{short(header.parameters)}, most {header.types}"),
        ("size", gib(one.size)),
        ("made for", f"{header.context:,} positions"),
    )
    for name, value in facts:
        parts += [(f"{name:<14}", DIM), f"{value}\n"]
    if fit is None:
        parts += [(f"{'memory':<14}", DIM), ("being computed\n", DIM)]
    else:
        parts += [(f"{'memory':<14}", DIM), (f"{fit.words}\n", colour(fit))]
        if fit.why:
            parts.append((f"{fit.why}\n", DIM))
        else:
            parts.append((f"takes {gib(fit.taken)}; computed for {fit.machine}\n", DIM))
    parts.append(("\ndrafter, ← → change it\n" if drafters else "", DIM))
    for choice in drafters:
        taken = choice == chosen
        parts.append((f"{'●' if taken else ' '} {choice.words}\n", "bold" if taken else ""))
    return Content.assemble(*parts)


def takes(fit: FitCheck | None, size: int) -> list[tuple[str, str]]:
    """Of a pair that is not here yet, from its shapes: the download and the memory."""
    if fit is None or fit.why:
        return []
    download = f"\n\nto fetch: about {gib(size)}\n" if size else "\n\n"
    memory = f"\nmemory: {gib(fit.taken)}, of it about {gib(fit.weights)} for weights; computed for {fit.machine}"
    return [(download, DIM), (fit.words, colour(fit)), (memory, DIM)]


def passed_over(others: Iterable[PassedOver]) -> list[Content]:
    """A line for what is no model to chat with, and one for each file that should have been one."""
    counted_text, broken = counted_others(others)
    lines = [Content.styled(f"  {counted_text}", DIM)] if counted_text else []
    # A row is cut off at the right: with its folder, a file's name would hide what is wrong.
    reasons = [one.why.replace(str(one.path), one.path.name) for one in broken]
    return [*lines, *(Content.assemble(("  ! ", "$warning"), (why, DIM)) for why in reasons)]
