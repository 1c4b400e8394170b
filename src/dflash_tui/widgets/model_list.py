"""The list of models: what its rows and details say, the list, and the fields above it, with completion of paths."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.suggester import Suggester
from textual.widgets import Input
from textual.widgets.option_list import Option

from dflash_core.clean import one_line
from dflash_core.memory import gib
from dflash_tui.application.amounts import short
from dflash_tui.application.hub.fitting import FitCheck
from dflash_tui.application.hub.found import Found, PassedOver, counted_others
from dflash_tui.widgets.literal import OptionList

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
    size: int = 0,
) -> Option:
    """A row: the name, and a summary below. Of a pair that can be fetched, `fetched` is the download's progress, and
    `size` is about how many bytes it has."""
    first = ["● " if present else "  ", (one_line(name), "bold")]
    parts: list[tuple[str, str]] = []
    if gone is not None:
        parts.append((f"{at_home(gone)} is not there", "$error"))
    elif fit is not None:
        parts.append((f"about {gib(size)}, {fit.words}" if size else fit.words, colour(fit)))
    if fetched:
        parts.append((one_line(fetched), "bold $primary"))
    if found is None:
        parts.append((one_line(about), DIM))
    else:
        first.append((f"   {one_line(about)}", DIM))
        drafter = "looking for its drafter"
        if choice is not None:
            drafter = choice.words if choice.draft is None else f"+ {choice.words}"
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


class Paths(Suggester):
    """Completes a path from what is in its folder."""

    def __init__(self, *, drafts: bool) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._ends = (".gguf", "/", ".safetensors") if drafts else (".gguf", "/")

    async def get_suggestion(self, value: str) -> str | None:
        """The first entry that goes on from `value`: a folder, or a file that may be a model."""
        folder, _, start = value.rpartition("/")
        try:
            where = Path(folder + "/" if value.startswith("/") else folder or ".").expanduser()
            names = sorted(one.name + "/" * one.is_dir() for one in where.iterdir() if one.name.startswith(start))
        except (OSError, RuntimeError):
            return None
        found = (name for name in names if name.endswith(self._ends) and not name.startswith("."))
        return next((value.removesuffix(start) + name for name in found), None)


class ModelList(OptionList):
    """A row is known by its id, which begins with `FILE`, `PROFILE` or `PAIR`."""

    HELP = (
        "↑ and ↓ choose, ← and → change the drafter, Enter loads. What is typed narrows the list; a path"
        " is a model. A profile is a model with all its settings."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select", "Load"),
        Binding("left", "screen.drafter(-1)", "Drafter", show=False),
        Binding("right", "screen.drafter(1)", "Drafter", key_display="← →"),
    ]

    @property
    def row(self) -> str:
        """The id of the row under the cursor; "" where there is none."""
        chosen = self.highlighted_option
        return (chosen.id or "") if chosen is not None else ""

    def show_rows(self, rows: Sequence[Option]) -> None:
        """Replace the rows; the cursor stays on its row if that still exists."""
        chosen, place = self.row, self.scroll_offset
        self.clear_options()
        self.add_options(rows)
        ids = [row.id for row in rows]
        at = ids.index(chosen) if chosen in ids else next((n for n, row in enumerate(rows) if not row.disabled), None)
        self.highlighted = at
        self.scroll_to(*place, animate=False)
        if at is not None:
            self.scroll_to_highlight()

    def hint(self, action: str, label: str) -> str:
        """Enter on what is not here yet asks the hub."""
        if action != "select":
            return label
        return "Get" if self.row.startswith(PAIR) else label if self.row else ""


class ModelField(Input):
    """Above the list."""

    HELP = "Words narrow the list. A path, with a / or ~ in front or .gguf at its end, is a model; Enter loads it."
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "screen.move(1)", show=False),
        Binding("up", "screen.move(-1)", show=False),
        Binding("enter", "submit", "Load"),
    ]

    def hint(self, action: str, label: str) -> str:
        if action != "submit" or self.path:
            return label
        rows = self.screen.query_one(ModelList)
        return rows.hint("select", label) if rows.row else ""

    @property
    def path(self) -> str:
        """The typed path; "" if the text is not a path."""
        text = self.value.strip()
        return text if is_path(text) else ""

    @property
    def words(self) -> tuple[str, ...]:
        """The typed words; none if the text is a path."""
        return () if self.path else tuple(self.value.lower().split())


class DraftField(Input):
    """Below the field, where that has a path: which drafter."""

    HELP = "A file, a folder, or text; empty is the head that the model brings, if any. → completes, Enter loads both."
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "submit", "Load")]


def is_path(text: str) -> bool:
    """Whether a typed text is a path and not search words."""
    return text.startswith(("/", "~", "./", "../")) or text.lower().endswith(".gguf")
