"""A sweep: what to run, a table of its results, and the curve or grid of speeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widget import Widget

from dflash_core.knobs import SPEC
from dflash_core.lab.grid import settings
from dflash_core.lab.laboratory import Laboratory
from dflash_core.lab.sweep import Sweep, SweepResult
from dflash_core.lab.table import best, rows
from dflash_tui.figures.measurements import What
from dflash_tui.screens.measuring import MeasuringScreen
from dflash_tui.settings.keys import bindings
from dflash_tui.text import lab as lab_text
from dflash_tui.text.bars import speed
from dflash_tui.text.glossary import figure, sentence
from dflash_tui.text.lab_request import SWEEP, parse_sweep
from dflash_tui.widgets.curve import HIGHEST, CurveView
from dflash_tui.widgets.literal import DataTable, Static, row_key

MARGIN = 4  # cells beside a table and a field
STRONGEST = 40  # percent of the ground of the best speed


class SweepScreen(MeasuringScreen):
    """One or two parameters over ranges, on the last prompt or on a file of prompts."""

    SCOPE: ClassVar[str] = "sweep"
    HEADING: ClassVar[str] = "Sweep"
    EXAMPLE: ClassVar[str] = SWEEP
    EXAMPLES: ClassVar[tuple[tuple[str, str], ...]] = (
        ("", "Enter measures on the last prompt; an empty line runs the first example."),
        (SWEEP, "a range"),
        ("p_min=0..0.5:0.1", "a range in steps of 0.1"),
        ("budget=4,15,22", "these values"),
        ("budget=4,15,22 p_min=0,0.1", "two parameters: a field of speeds"),
        ("repeats=3", "each setting three times"),
        ("prompts=FILE samples=10", "on ten prompts of a file"),
    )
    FILE: ClassVar[str] = "sweep.csv"
    WHAT: ClassVar[What] = "sweep"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(SCOPE)]

    def body(self) -> Iterable[Widget]:
        yield self.line()
        yield self.examples()
        yield Horizontal(
            _Table(id="sweep-table"),
            Vertical(CurveView("sweep-curve"), Static("", id="sweep-field"), classes="curves"),
            classes="lab-body stacked",
        )
        yield Static("", id="sweep-notes")

    def words(self, result: SweepResult) -> str:
        top = best(rows(result))
        return f"{top.setting.label}: {speed(top.tok_s.median)} tok/s is the best" if top is not None else "nothing"

    def plan(self, text: str, lab: Laboratory) -> Sweep:
        axes, options = parse_sweep(text or SWEEP)
        grid = settings(axes, self.chat.knobs, lab.limits)
        cases = options.cases(self.last_prompt())
        return lab.sweep(grid, cases, options.rounds(len(cases)), [axis.name for axis in axes])

    def focus_results(self) -> None:
        self.query_one(_Table).focus()

    def draw(self) -> None:
        super().draw()
        result = self.result
        if result is None:
            self.query_one(_Table).clear(columns=True)
            self.query_one("#sweep-curve").display = self.query_one("#sweep-field").display = False
            self.query_one("#sweep-notes", Static).update("")
            return
        its = rows(result)
        top = best(its)
        lines = [lab_text.cells(row, top, result.axes) for row in its]
        self.query_one(_Table).show(result.axes[0], lab_text.headings(result), lines, [row.index for row in its])
        marks, title = lab_text.curve(result)
        columns = zip(lab_text.headings(result), *lines)
        beside = self.room - sum(max(map(len, column)) + 2 for column in columns) - MARGIN
        field = lab_text.field(result, self.room - MARGIN if self.has_class("-narrow") else beside)
        below = bool(field) and max(map(len, lab_text.plain(field))) > beside
        self.query_one(".lab-body").set_class(below, "-below")
        self.query_one("#sweep-curve").display = bool(marks)
        self.query_one("#sweep-curve", CurveView).show(marks, title, ("median", result.axes[0]))
        self.query_one("#sweep-field").display = bool(field)
        self.fit(len(lines) + 1, HIGHEST if marks else len(field))
        self.query_one("#sweep-field", Static).update(_heat(field))
        notes = lab_text.notes(result, running=self.running)
        self.query_one("#sweep-notes", Static).update(sentence("\n".join(notes), otherwise="runs"))

    # Actions

    def action_adopt(self) -> None:
        """Adopt the best setting."""
        top = best(rows(self.result)) if self.result is not None else None
        if top is None:
            self.say("no best yet: Enter in the line above starts a sweep")
        else:
            self._adopt(top.index)

    @on(DataTable.RowSelected)
    def _chosen(self, event: DataTable.RowSelected) -> None:
        if (key := row_key(event)) is not None:
            self._adopt(int(key))

    def _adopt(self, index: int) -> None:
        if self.result is not None:
            knobs = self.result.settings[index].knobs
            self.adopt({name: getattr(knobs, name) for name in self.result.axes if name in SPEC})


def _heat(lines: list[list[lab_text.Cell]]) -> Content:
    """A field of speeds on a ground that is the stronger the faster they are."""
    parts: list[str | tuple[str, str]] = []
    for line in lines:
        for text, share in line:
            ground = f" on $primary {round(share * STRONGEST)}%" if share else ""
            parts.append((text, figure("median", f"{'bold' if share == 1 else ''}{ground}".strip())))
        parts.append("\n")
    return Content.assemble(*parts[:-1])


class _Table(DataTable):
    """Settings in the order of the grid; Enter adopts the one under the cursor."""

    HELP = "↑ and ↓ choose a setting, Enter takes it over for the next turn."
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "select_cursor", "Use")]

    def show(self, swept: str, headings: Sequence[str], lines: Sequence[Sequence[str]], keys: Sequence[int]) -> None:
        """Refill the table; the cursor keeps its place."""
        row = self.cursor_row
        self.clear(columns=True)
        self.add_headings(headings, (swept, *lab_text.FIGURES))
        for key, line in zip(keys, lines):
            self.add_texts(line, key=str(key))
        self.move_cursor(row=min(row, len(lines) - 1))
