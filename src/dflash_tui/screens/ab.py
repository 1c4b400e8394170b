"""One setting against another on the same prompt: figures, the result, both answers side by side."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widget import Widget

from dflash_core.clean import clean
from dflash_core.knobs import SPECS
from dflash_core.lab.diff import Stretch, diff
from dflash_core.lab.laboratory import Laboratory
from dflash_core.lab.sweep import Sweep, SweepResult
from dflash_core.lab.versus import versus
from dflash_tui.figures.measurements import What
from dflash_tui.screens.measuring import MeasuringScreen
from dflash_tui.settings.keys import bindings
from dflash_tui.text import lab as lab_text
from dflash_tui.text.glossary import QUOTED, figure, sentence, told
from dflash_tui.text.lab_request import AB, parse_ab
from dflash_tui.widgets.literal import Static

OTHER = "bold underline"


class ABScreen(MeasuringScreen):
    """Runs A and B alternately. The default comparison is tree against chain."""

    SCOPE: ClassVar[str] = "ab"
    HEADING: ClassVar[str] = "A against B"
    EXAMPLE: ClassVar[str] = AB
    EXAMPLES: ClassVar[tuple[tuple[str, str], ...]] = (
        ("", "Enter measures on the last prompt; an empty line runs the first example."),
        (AB, "one setting against another"),
        ("budget=40", "against the current setting"),
        ("repeats=10", "each setting ten times"),
        ("prompts=FILE samples=10", "on ten prompts of a file"),
    )
    FILE: ClassVar[str] = "ab.csv"
    WHAT: ClassVar[What] = "ab"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(SCOPE)]

    faster: int | None = None
    """The side that is faster by more than noise: A (0) or B (1)."""

    def body(self) -> Iterable[Widget]:
        yield self.line()
        yield self.examples()
        yield Static("", id="ab-figures")
        yield Horizontal(
            VerticalScroll(Static("", id="ab-a"), id="ab-left"),
            VerticalScroll(Static("", id="ab-b"), id="ab-right"),
            classes="lab-body",
        )

    def words(self, result: SweepResult) -> str:
        it = versus(result)
        return lab_text.finding(it, [one.label for one in result.settings]) if it is not None else "no pair yet"

    def plan(self, text: str, lab: Laboratory) -> Sweep:
        pair, options = parse_ab(text, self.chat.knobs, lab.limits)
        cases = options.cases(self.last_prompt())
        return lab.sweep(pair, cases, options.rounds(len(cases)))

    def focus_results(self) -> None:
        self.query_one("#ab-left").focus()

    def draw(self) -> None:
        super().draw()
        it = versus(self.result) if self.result is not None else None
        speeds = it.figures[0].comparison if it is not None else None
        self.faster = int(speeds.difference > 0) if speeds is not None and speeds.matters else None
        if it is None or self.result is None:
            for part in self.query("#ab-figures, #ab-a, #ab-b").results(Static):
                part.update("")
            return
        labels = tuple(setting.label for setting in self.result.settings)
        lines = [lab_text.finding(it, labels), "", *lab_text.versus_table(it), lab_text.same_text(it)]
        self.query_one("#ab-figures", Static).update(sentence("\n".join(lines), otherwise="median"))
        stretches = diff(clean(it.a.text), clean(it.b.text))
        self.query_one("#ab-a", Static).update(_answer(f"A  {labels[0]}", [(s, s.a) for s in stretches]))
        self.query_one("#ab-b", Static).update(_answer(f"B  {labels[1]}", [(s, s.b) for s in stretches]))

    def hint(self, action: str, label: str) -> str:
        if action == "adopt":
            label = "" if self.faster is None else f"Use {'AB'[self.faster]}"
        return super().hint(action, label)

    def action_adopt(self) -> None:
        """Adopt the faster one."""
        if self.faster is not None:
            self.action_take(self.faster)
        elif self.result is not None:
            self.say("neither is faster by more than noise: 1 adopts A, 2 adopts B")
        else:
            self.say("nothing to adopt yet: Enter in the line above starts")

    def action_take(self, side: int) -> None:
        """Adopt A (0) or B (1)."""
        if self.result is None:
            self.say("nothing to adopt yet: Enter in the line above starts")
            return
        knobs, now = self.result.settings[side].knobs, self.chat.knobs
        changes = {s.name: getattr(knobs, s.name) for s in SPECS if getattr(knobs, s.name) != getattr(now, s.name)}
        if changes:
            self.adopt(changes)
        else:
            self.say("that is already the current setting")


def _answer(heading: str, stretches: list[tuple[Stretch, str]]) -> Content:
    parts = [(text, figure(QUOTED, "" if stretch.same else OTHER)) for stretch, text in stretches]
    return Content.assemble(*told(f"{heading}\n\n", "bold $primary"), *parts)
