"""The memory that a pair would take, before it is loaded: bars by component, keys for context and cache type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.worker import Worker

from dflash_core.clean import one_line
from dflash_core.errors import DFlashError
from dflash_core.fits import MemoryEstimator, MemoryPlan, Setup, plan
from dflash_core.memory import gib
from dflash_tui.application import advice, fits
from dflash_tui.application.background import aside
from dflash_tui.application.hub.catalogue import Pair
from dflash_tui.application.hub.fitting import estimator_of
from dflash_tui.chat.parts import ChatParts
from dflash_tui.text.bars import fit
from dflash_tui.widgets.dialogs import BACK, KeyHints
from dflash_tui.widgets.literal import Static

COLOURS = ("$primary", "$secondary", "$success", "$foreground", "$primary 60%", "$secondary 60%", "$foreground 60%")
NAME, SIZE, DETAIL, WIDTH = 14, 10, 36, 66
FITS = "fits up to  "


class PlanScreen(ModalScreen[bool]):
    """← and → change the context, up and down the type of keys and values; Enter loads the pair with both."""

    SCOPE: ClassVar[str] = "plan"
    BINDINGS: ClassVar[list[BindingType]] = [
        ("left", "context(-1)", "Shorter"),
        ("right", "context(1)", "Longer"),
        ("up", "kind(-1)", "Finer"),
        ("down", "kind(1)", "Smaller"),
        ("enter", "load", "Load"),
        ("escape", "back", "Back"),
    ]

    def __init__(
        self,
        chat: ChatParts,
        target: Path | None,
        draft: Path | None,
        make: Callable[[], MemoryEstimator] | None = None,
        *,
        context: int | None = None,
        kv: str = "",
        unfetched: Pair | None = None,
    ) -> None:
        """`unfetched`: a pair of the catalogue, planned from its shapes; Enter then only returns True."""
        super().__init__()
        self._chat, self._pair, self._unfetched = chat, (target, draft), unfetched
        request = chat.program.planned(target, draft, context, kv)
        self._request = unfetched.planned(request) if unfetched is not None else request
        self._make = make or (lambda: estimator_of(self._request))
        self._freed = chat.program.releasable  # bytes that the present pair frees before another one is loaded
        self._estimator: MemoryEstimator | None = None
        self._setup: Setup | None = None
        self._worker: Worker[None] | None = None
        self._body, self._hints = Static("reading the headers", id="plan-body"), KeyHints(BACK)

    def compose(self) -> ComposeResult:
        target, _ = self._pair
        name = self._unfetched.name if self._unfetched else target.name if target else "the demo pair"
        with Vertical(id="plan", classes="dialog"):
            yield Static(one_line(f"What {name} takes"), id="plan-title")
            with VerticalScroll(can_focus=False):
                yield self._body
            yield self._hints

    def on_mount(self) -> None:
        self._plan()

    def _plan(self) -> None:
        if self._worker is None or self._worker.is_finished:
            self._worker = self.run_worker(self._shown())

    async def _shown(self) -> None:
        """Plan what was asked for last, and show it. On threads: torch is imported, and headers are read."""
        planned: Setup | None = None
        try:
            if self._estimator is None:
                made = await aside(self._make)
                self._setup = await aside(partial(self._request.setup, made, made.available + self._freed))
                self._estimator = made
            estimator, available = self._estimator, self._estimator.available + self._freed
            while self._setup is not None and self._setup is not planned:
                planned = self._setup
                self._body.update(drawn(await aside(partial(plan, estimator, planned, available)), self._freed))
        except DFlashError as error:
            self._body.update(one_line(advice.in_app(error)))
        except Exception as error:
            self._body.update(one_line(f"it cannot be planned: {error}"))
        else:
            enter = "fetches it" if self._unfetched else "loads it"
            self._hints.tell(("← →", "context"), ("↑ ↓", "keys and values"), ("Enter", enter), BACK)

    def action_context(self, by: int) -> None:
        if (setup := self._setup) is not None and self._estimator is not None:
            now = setup.context
            others = (one for one in contexts(self._estimator) if (one - now) * by > 0)
            self._setup = replace(setup, context=min(others, key=lambda one: abs(one - now), default=now))
            self._plan()

    def action_kind(self, by: int) -> None:
        if (setup := self._setup) is not None and self._estimator is not None:
            kinds = list(dict.fromkeys((*self._estimator.kv_types, setup.kv)))
            self._setup = replace(setup, kv=kinds[min(max(kinds.index(setup.kv) + by, 0), len(kinds) - 1)])
            self._plan()

    def action_load(self) -> None:
        if self._setup is not None:
            self.dismiss(True)
            if self._unfetched is None:
                kv = "" if self._setup.kv == "f32" else self._setup.kv  # the default of the reference
                self._chat.program.change_model(*self._pair, context=self._setup.context, kv=kv)

    def action_back(self) -> None:
        self.dismiss(False)


def contexts(estimator: MemoryEstimator) -> list[int]:
    """The scale of contexts: powers of two up to the model's own length."""
    longest = estimator.longest_context
    return [*(1 << power for power in range(9, 21) if 1 << power < longest), longest]


def drawn(found: MemoryPlan, freed: int = 0) -> Content:
    """A plan as text: the bar, its components, what fits, and what would help. `freed`: bytes of the present pair."""
    setup, dim = found.setup, "$foreground 70%"
    parts: list[str | tuple[str, str]] = [
        (f"computed for {found.machine}\n", dim),
        (f"and {gib(freed)} that the present pair frees\n" if freed else "", dim),
        (f"{setup.context:,} positions", "bold"), ", keys and values as ", (f"{setup.kv}\n", "bold"),
        *bar(found, WIDTH), "\n",
    ]  # fmt: skip
    for index, one in enumerate(found.components):
        size = f"{fit(one.name, NAME)}{gib(one.bytes):>{SIZE}}  "
        parts += [("■ ", _colour(index)), size, (f"{fit(one.detail, DETAIL).rstrip()}\n", dim)]
    parts += [(f"{text}\n", dim) for text in (fits.reduced(setup) if found.fits else ())]
    parts += [(f"{fits.verdict(found)}\n", "bold $success" if found.fits else "bold $error"), (FITS, dim)]
    at = len(FITS)
    for kv, context in found.context_that_fits.items():
        entry = f"{kv} {context:,}" if context else f"{kv} none"
        if at + len(entry) > WIDTH:  # a type and its context stay on one line
            parts.append("\n")
            at = 0
        parts.append((f"{entry}  ", "bold" if kv == setup.kv else ""))
        at += len(entry) + 2
    helps = [f"{fits.remedy_words(remedy, setup)}: {gib(remedy.total)}" for remedy in found.remedies]
    helps += filter(None, [fits.smaller_words(found)])
    parts.append("\n")
    for text in helps:
        parts += [("helps  ", dim), f"{text}\n"]
    if not found.fits and not helps:
        parts.append(("a smaller model is needed here\n", dim))
    return Content.assemble(*parts)


def bar(found: MemoryPlan, width: int) -> list[tuple[str, str]]:
    """The device memory as a bar: the components, then what is free; red beyond its capacity."""
    scale = max(found.total, found.available, 1)
    full, at, used = round(width * found.available / scale), 0, 0
    cells: list[tuple[str, str]] = []
    for index, part in enumerate(found.components):
        used += part.bytes
        end = round(width * used / scale)
        cells += [("█", _colour(index) if cell < full else "$error") for cell in range(at, end)]
        at = end
    return [*cells, ("░" * (width - at), "$foreground 70%")]


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]
