"""The list of models and the fields above it; its rows: profiles, models on this machine, pairs to fetch."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.suggester import Suggester
from textual.widgets import Input
from textual.widgets.option_list import Option

from dflash_core.clean import one_line
from dflash_core.memory import gib
from dflash_tui.application import smollm2
from dflash_tui.application.advice import at_home
from dflash_tui.application.amounts import short
from dflash_tui.application.finding import Finding
from dflash_tui.application.hub.catalogue import Catalogue, Pair
from dflash_tui.application.hub.files import begun_words
from dflash_tui.application.hub.fitting import FitCheck
from dflash_tui.application.hub.found import Found, PassedOver, counted_others
from dflash_tui.application.hub.walk import downloads
from dflash_tui.application.session import LoadRequest
from dflash_tui.application.settings.presets import Profile
from dflash_tui.chat.downloads import Downloads
from dflash_tui.chat.program import ProgramController
from dflash_tui.widgets.literal import OptionList

ABOUT_DEMO = """A small pair that comes with the program.

The pair writes whole sentences, and serves to look around and to see how drafting works.

The program fetches nothing for this pair, and any machine runs it."""


DIM = "$foreground 75%"
Part = tuple[str, str]  # a text and its style


def _shown(path: Path) -> str:
    return one_line(at_home(str(path)))


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A drafter that a target may get: in words, and as it is loaded."""

    words: str
    draft: Path | None


def choices(one: Found) -> list[ModelChoice]:
    """What a target can draft with, the best guess first."""
    drafters = one.drafters or ()
    belongs = [ModelChoice(drafter.name, drafter.path) for drafter in drafters if drafter.belongs]
    others = [ModelChoice(f"{drafter.name} (of another?)", drafter.path) for drafter in drafters if not drafter.belongs]
    own = ModelChoice("its own MTP head" if one.header.own_head else "no drafter", None)
    return [*belongs, own, ModelChoice("n-grams", Path("ngram")), *others]


def row(id: str, name: str, parts: Iterable[Part], *, beside: str = "", present: bool = False) -> Option:
    """A row: the name and what is `beside` it; the parts below."""
    summary = Content.styled(" · ", DIM).join(Content.styled(*part) for part in parts)
    about = (f"   {one_line(beside)}" if beside else "", DIM)
    return Option(Content.assemble("● " if present else "  ", (one_line(name), "bold"), about, "\n  ", summary), id=id)


def typed(path: str) -> Option:
    """The row of a path that is being typed."""
    about = "loads the file of this path with the drafter below; → completes a path, Tab goes on"
    return row(TYPED, path, [(about, DIM)])


def fitting(fit: FitCheck | None, size: int = 0) -> list[Part]:
    """Whether it fits. Of a pair that can be fetched, `size` is about how many bytes it has."""
    return [(f"about {gib(size)}, {fit.words}" if size else fit.words, colour(fit))] if fit is not None else []


def colour(fit: FitCheck) -> str:
    return DIM if fit.why else "$success" if not fit.short else "$warning" if fit.context else "$error"


def beside(one: Found, drafters: Sequence[ModelChoice], chosen: ModelChoice | None, fit: FitCheck | None) -> Content:
    """The details of a model; Enter takes the drafter `chosen`."""
    header = one.header
    parts: list[tuple[str, str] | str] = [(f"{one_line(header.title)}\n", "bold"), (f"{_shown(one.path)}\n\n", DIM)]
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


@dataclass(eq=False)
class Offered:
    """Rows by their ids, built on demand from what `finding` has found."""

    _program: ProgramController
    _catalogue: Catalogue
    _finding: Finding
    _downloads: Downloads
    _drafters: dict[str, int] = field(default_factory=dict)  # the drafter chosen for a file, if not its first

    def rows(self, words: tuple[str, ...]) -> Iterator[Option]:
        """Those that have all of `words`, below headings."""
        profiles, files, pairs = list(self._profiles(words)), list(self._files(words)), list(self._pairs(words))
        # Rows that cannot be chosen come between the others: the list scrolls no further than its last row.
        others = [Option(line, disabled=True) for line in passed_over(list(self._finding.others))] if not words else []
        parts = (("Profiles", profiles), ("On this machine", files), ("Not offered", others), ("To fetch", pairs))
        gap = ""
        for heading, rows in parts:
            if rows:
                yield Option(Content.styled(f"{gap}{heading}", "bold $primary"), disabled=True)
                yield from rows
                gap = "\n"
        if not (profiles or files or pairs):
            yield Option(
                Content("No model has these words. A path begins with / or ~, or ends in .gguf."), disabled=True
            )

    def _profiles(self, words: tuple[str, ...]) -> Iterator[Option]:
        for one in self._program.state.presets.profiles.values():
            if _has(words, one.name, one.words):
                id, fit = PROFILE + one.name, self._finding.fits.get(PROFILE + one.name)
                # The fit comes first, so the same number of positions is not repeated.
                shown = replace(one, context=0) if fit is not None and not fit.short and not fit.why else one
                gone = one.gone()
                where = [(f"{_shown(gone)} is not there", "$error")] if gone is not None else fitting(fit)
                yield row(id, one.name, [*where, (one_line(shown.words), DIM)])

    def _files(self, words: tuple[str, ...]) -> Iterator[Option]:
        present = self._program.state.present
        here = present is not None and not present.attach  # a server's model is no file
        target = present.target if present is not None and here else None
        if _has(words, "demo pair"):
            small = [("small, comes with the program", DIM)]
            yield row(DEMO, "demo pair", small, present=here and target is None)
        for path, one in list(self._finding.models.items()):
            if _has(words, one.name, one.where, one.header.architecture, one.header.title):
                about = smollm2.ABOUT if Path(path).name == Path(smollm2.FILE).name else one.where
                choice, drafter = self._choice(path, one), "looking for its drafter"
                if choice is not None:
                    drafter = choice.words if choice.draft is None else f"+ {choice.words}"
                facts = f"{gib(one.size)} · {drafter} · {one.header.architecture}, {one.header.types}"
                parts = [*fitting(self._finding.fits.get(self._key(path, one))), (facts, DIM)]
                yield row(FILE + path, one.name, parts, beside=about, present=str(target) == path)

    def _pairs(self, words: tuple[str, ...]) -> Iterator[Option]:
        # Those being fetched come first: the user is probably looking for them.
        for one in sorted(self._catalogue.pairs.values(), key=lambda one: self._downloads.of(one.name) is None):
            if _has(words, one.name, one.about, "get fetch"):
                about = " · ".join(filter(None, (one.about, f"licence: {one.licence or 'not stated'}")))
                fetched = [(one_line(self._fetched(one)), "bold $primary")]
                fit = fitting(self._finding.fits.get(PAIR + one.name), self._size(one))
                yield row(PAIR + one.name, one.name, [*fit, *filter(all, fetched), (one_line(about), DIM)])

    def _size(self, pair: Pair) -> int:
        """About how many bytes are fetched; 0 where that is not known yet."""
        fit = self._finding.fits.get(PAIR + pair.name)
        target, drafter = fit.files if fit is not None else (0, 0)
        return target + drafter * (pair.draft is not None)

    def _fetched(self, pair: Pair) -> str:
        """The progress of a pair that is or was being fetched; "" if nothing of it is on the disk."""
        it = self._downloads.of(pair.name)
        return it.words if it is not None else begun_words(pair, downloads())

    def about(self, row: str) -> Content:
        if (one := self.found(row)) is not None:
            key = self._key(row.removeprefix(FILE), one)
            drafters = choices(one) if one.drafters is not None else []
            return beside(one, drafters, self._choice(key[0], one), self._finding.fits.get(key))
        if (profile := self.profile(row)) is not None:
            fit = self._finding.fits.get(row)
            shown = profile if fit is None or fit.why else profile.within(fit.wished)
            return Content(one_line(shown.words).replace(" · ", "\n"))
        if (pair := self.pair(row)) is not None:
            lines = (pair.about, pair.licence, pair.target.repo, pair.draft.repo if pair.draft else "")
            about, fetched = "\n".join(filter(None, lines)), self._fetched(pair)
            takes_up = takes(self._finding.fits.get(row), self._size(pair))
            return Content.assemble(about, f"\n\n{fetched}" if fetched else "", *takes_up)
        return Content(ABOUT_DEMO if row == DEMO else "")

    def found(self, row: str) -> Found | None:
        """The file of a row; None for another kind of row, or if it has not been found (yet)."""
        return self._finding.models.get(row.removeprefix(FILE)) if row.startswith(FILE) else None

    def profile(self, row: str) -> Profile | None:
        return self._program.state.presets.profiles.get(row.removeprefix(PROFILE)) if row.startswith(PROFILE) else None

    def pair(self, row: str) -> Pair | None:
        return self._catalogue.pairs.get(row.removeprefix(PAIR)) if row.startswith(PAIR) else None

    # Drafters

    def draft(self, path: str) -> Path | None:
        choice = self._choice(path, self._finding.models[path])
        return choice.draft if choice is not None else None

    def change_draft(self, path: str, by: int) -> None:
        self._drafters[path] = (self._drafters.get(path, 0) + by) % len(choices(self._finding.models[path]))

    def _choice(self, path: str, one: Found) -> ModelChoice | None:
        """The drafter that Enter selects, once its drafters are known."""
        found = choices(one)
        return found[self._drafters.get(path, 0) % len(found)] if one.drafters is not None else None

    def _key(self, path: str, one: Found) -> tuple[str, Path | None]:
        choice = self._choice(path, one)
        return path, choice.draft if choice is not None else None

    # What fits

    def ask(self, row: str) -> None:
        """Have the thread estimate what fits, this row first."""
        planned, asked = self._program.planned, dict[Hashable, LoadRequest]()
        for path, one in list(self._finding.models.items()):
            if one.drafters is not None:
                key = self._key(path, one)
                asked[key] = planned(one.path, key[1])
        for it in self._program.state.presets.profiles.values():
            if it.gone() is None:
                asked[PROFILE + it.name] = planned(it.target, it.draft, it.context, it.kv)
        for pair in self._catalogue.pairs.values():
            if pair.shapes:
                asked[PAIR + pair.name] = pair.planned(planned(None, None))
        found = self.found(row)
        first = self._key(row.removeprefix(FILE), found) if found is not None else row
        self._finding.ask({first: asked[first], **asked} if first in asked else asked)


def _has(words: tuple[str, ...], *texts: str) -> bool:
    text = " ".join(texts).lower()
    return all(word in text for word in words)


DEMO = "demo"
FILE, PROFILE, PAIR, TYPED = "file ", "profile ", "pair ", "typed"  # beginnings of the ids of rows


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
