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
    drafters = one.drafters or ()
    belongs = [ModelChoice(drafter.name, drafter.path) for drafter in drafters if drafter.belongs]
    others = [ModelChoice(f"{drafter.name} (of another?)", drafter.path) for drafter in drafters if not drafter.belongs]
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
) -> Option:
    """A row: the name, and a summary below. `fetched`: the download's progress, for a pair that can be fetched."""
    first = ["● " if present else "  ", (one_line(name), "bold")]
    parts: list[tuple[str, str]] = []
    if gone is not None:
        parts.append((f"{at_home(gone)} is not there", "$error"))
    elif fit is not None:
        size = f"about {gib(fit.weights)}, " if found is None and fit.weights and id.startswith(PAIR) else ""
        parts.append((f"{size}{fit.words}", colour(fit)))
    if fetched:
        parts.append((one_line(fetched), "bold $primary"))
    if found is None:
        parts.append((one_line(about), DIM))
    else:
        first.append((f"   {one_line(about)}", DIM))
        drafter = "looking for its drafter" if choice is None else "+ " * (choice.draft is not None) + choice.words
        parts.append((f"{gib(found.size)} · {drafter} · {found.header.architecture}, {found.header.types}", DIM))
    summary = Content.styled(" · ", DIM).join(Content.styled(*part) for part in parts)
    return Option(Content.assemble(*first, "\n  ", summary), id=id)


def colour(fit: FitCheck) -> str:
    return DIM if fit.why else "$success" if not fit.short else "$warning" if fit.context else "$error"


def beside(one: Found, drafters: Sequence[ModelChoice], chosen: ModelChoice | None, fit: FitCheck | None) -> Content:
    """The details of a model; Enter takes the drafter `chosen`."""
    header = one.header
    parts: list[tuple[str, str] | str] = [(f"{one_line(header.title)}\n", "bold"), (f"{at_home(one.path)}\n\n", DIM)]
    facts = {
        "found in": (one.where, ""),
        "architecture": (header.architecture, ""),
        "weights": (f"{short(header.parameters)}, most {header.types}", ""),
        "size": (gib(one.size), ""),
        "made for": (f"{header.context:,} positions", ""),
        "memory": (fit.words, colour(fit)) if fit is not None else ("being computed", DIM),
    }
    for name, (value, style) in facts.items():
        parts += [(f"{name:<14}", DIM), (f"{value}\n", style)]
    if fit is not None:
        parts.append((f"{fit.why or f'takes {gib(fit.taken)}; computed for {fit.machine}'}\n", DIM))
    parts.append(("\ndrafter, ← → change it\n" if drafters else "", DIM))
    for choice in drafters:
        mark, style = ("●", "bold") if choice == chosen else (" ", "")
        parts.append((f"{mark} {choice.words}\n", style))
    return Content.assemble(*parts)


def takes(fit: FitCheck | None) -> list[tuple[str, str]]:
    """The memory of a pair that is not here yet, from its shapes."""
    if fit is None or fit.why:
        return []
    size = f"\ntakes {gib(fit.taken)}, weights about {gib(fit.weights)}; computed for {fit.machine}"
    return [(f"\n\n{fit.words}", colour(fit)), (size, DIM)]


def passed_over(others: Iterable[PassedOver]) -> list[Content]:
    """A line for what is no model to chat with, and one for each file that should have been one."""
    counted_text, broken = counted_others(others)
    lines = [Content.styled(f"  {counted_text}", DIM)] if counted_text else []
    # A row is cut off at the right: with its folder, a file's name would hide what is wrong.
    reasons = [one.why.replace(str(one.path), one.path.name) for one in broken]
    return [*lines, *(Content.assemble(("  ! ", "$warning"), (why, DIM)) for why in reasons)]
