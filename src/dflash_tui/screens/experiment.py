"""The one screen of experiments: a line that says what to run, the result in a sentence, its table, a curve or answers.

A sweep, A against B, a tuning and the speed of plain decoding differ only in how they fill it: experiments.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Input

from dflash_core.clean import clean
from dflash_core.errors import DFlashError
from dflash_core.knobs import Knobs
from dflash_core.lab.diff import diff
from dflash_core.lab.experiment import Case, Design, last_prompts
from dflash_core.lab.experiment import Experiment as LabExperiment
from dflash_core.lab.export import ENDINGS, write
from dflash_core.lab.grid import Arm
from dflash_core.lab.results import Result, Trial, plain_of_result
from dflash_core.lab.table import best, rows
from dflash_tui.application.amounts import counted
from dflash_tui.application.background import Experiment
from dflash_tui.application.figures.measurements import MeasuredRow, What
from dflash_tui.application.lab_request import adopted
from dflash_tui.application.session import SessionLike
from dflash_tui.application.settings.presets import Preset, changed
from dflash_tui.chat.parts import ChatParts
from dflash_tui.screens.lab import HIGHEST, CurveView, LabScreen
from dflash_tui.screens.page import Rows
from dflash_tui.text import lab as lab_text
from dflash_tui.widgets.dialogs import ask_line
from dflash_tui.widgets.literal import DataTable, Static, row_key

REDRAW_S = 0.5
OTHER = "bold underline"
MARGIN = 4  # cells beside a table and a field
STRONGEST = 40  # percent of the ground of the best speed
TABLE = "Use", "↑ and ↓ choose a setting, Enter uses it from the next turn, s saves it as a preset."
EXAMPLE = 31  # cells of the column of examples


class Line(Input):
    """The line that says what to run."""

    HELP = "Enter runs what the line says; Tab goes to the results."
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "submit", "Run")]


class ExperimentScreen(LabScreen):
    """`text` says what to run; with `at_once` it runs when the screen opens. Enter on a row uses its setting."""

    SCOPE = "experiment"
    EXAMPLE: ClassVar[str] = ""
    EXAMPLES: ClassVar[tuple[tuple[str, str], ...]] = ()
    OPTIONS: ClassVar[tuple[tuple[str, str], ...]] = (
        ("repeats=3", "each setting three times"),
        ("prompts=FILE samples=10", "on ten prompts of a file"),
    )
    WHAT: ClassVar[What]
    BRIEF: ClassVar[tuple[str, ...]] = ()
    """Parameters that the experiment sets for itself: a setting that is used leaves the user's."""
    AUTO_FOCUS = "#lab-what"

    def __init__(self, chat: ChatParts, text: str = "", *, at_once: bool = False) -> None:
        super().__init__(chat)
        self._text, self._at_once = text, at_once
        self._on = ""  # the source of the prompts, in words
        self.experiment: LabExperiment | None = None
        self.result: Result | None = None
        self._drawn_at = 0.0

    def plan(self, text: str, session: SessionLike) -> Design:
        """The runs that `text` asks for. Raises DFlashError."""
        raise NotImplementedError

    def finding(self, result: Result) -> str:
        return lab_text.finding(result, running=self.running)

    def body(self) -> Iterable[Widget]:
        field = Line(self._text, placeholder=self.EXAMPLE, id="lab-what", compact=True)
        yield Horizontal(Static("❯", id="lab-mark"), field, id="lab-line")
        shown = (*self.EXAMPLES, *self.OPTIONS)
        examples = (f" {example:<{EXAMPLE}}{what}\n" if example else f" {what}\n\n" for example, what in shown)
        yield Static(Content.styled("\n" + "".join(examples), "$foreground 80%"), id="lab-examples")
        yield Static("", id="lab-finding")
        yield Horizontal(
            _Table(*TABLE, id="lab-table"),
            Vertical(CurveView("lab-curve"), Static("", id="lab-field"), classes="curves"),
            classes="lab-body stacked",
        )
        yield Horizontal(
            VerticalScroll(Static("", id="lab-a"), id="lab-left"),
            VerticalScroll(Static("", id="lab-b"), id="lab-right"),
            id="lab-answers",
        )
        yield Static("", id="lab-notes")

    def on_mount(self) -> None:
        if self._at_once:
            self.call_after_refresh(self.action_start)

    def hint(self, action: str, label: str) -> str:
        of_results = action in ("adopt", "export", "save")
        return super().hint(action, label) if self.result is not None or not of_results else ""

    # Prompts

    def asked(self, count: int = 1) -> list[Case]:
        """The last questions of the conversation."""
        session = self.chat.state.session
        return last_prompts(session.conversation.messages, count) if session is not None else []

    # The run

    @on(Input.Submitted, "#lab-what")
    def action_start(self) -> None:
        session = self.measurable()
        if session is None:
            return
        try:
            experiment = session.experiment(self.plan(self.query_one("#lab-what", Input).value, session))
        except DFlashError as error:
            self.say(error)
            return
        self.experiment, self.result = experiment, None
        self.begin(iter(experiment), self._ended, experiment.cancel)
        self.query_one(_Table).follow = True
        self.draw()
        self.query_one(_Table).focus()  # letters are keys again

    def looked(self) -> None:
        """While runs come in: show their results, but not too often."""
        now = time.monotonic()
        if self.experiment is not None and now - self._drawn_at > REDRAW_S:
            self._drawn_at = now
            self._take()

    def _ended(self, experiment: Experiment) -> None:
        self._take()
        result, past = self.result, self.measurements
        if result is None or not result.trials:
            self.draw()  # what can be run is listed again
            if experiment.error is None:
                self.say("stopped before anything was measured; r begins again")
            return
        if past is not None:
            past.add(self.WHAT, self.finding(result), _rows(result))
        how = "timed separately" if self.WHAT == "plain" else f"by /{self.WHAT}"
        if (plain := plain_of_result(result, how)) is not None:
            self.chat.gauges.took_plain_speed(plain)
        if experiment.error is None and not result.complete:
            self.say(f"cut short after {counted(len(result.trials), 'run')}")

    def _take(self) -> None:
        result = self.experiment.result if self.experiment is not None else None
        # Draw the end even if all runs were shown before: the notes say that the measurement is complete.
        if result is not None and result.trials and (result != self.result or not self.running):
            self.result = result
            self.draw()

    # Drawing

    def draw(self) -> None:
        result = self.result
        self.query_one("#lab-examples").display = result is None and not self.running
        self.query_one("#lab-finding").display = result is not None
        self.query_one(".lab-body").display = result is not None or self.running  # else it takes no focus
        marks, title = lab_text.curve(result) if result is not None else ([], "")
        field = self._field(result) if result is not None else []
        self.query_one("#lab-curve").display, self.query_one("#lab-field").display = bool(marks), bool(field)
        self.query_one(".curves").display = bool(marks or field)
        notes = self.query_one("#lab-notes", Static)
        if result is None:
            self.query_one("#lab-answers").display = False
            notes.update("")
            return
        self.query_one("#lab-finding", Static).update(self.finding(result))
        table = self.query_one(_Table)
        table.set_class(not (marks or field), "-only")
        lines = table.show(result, self.text_width)
        self.query_one("#lab-curve", CurveView).show(marks, title)
        self.query_one("#lab-field", Static).update(_heat(field))
        self.fit(lines + 1, HIGHEST if marks else len(field))
        on = [f"on {self._on}"] if self._on else []
        notes.update("\n".join([*self._answers(result), *on, *lab_text.notes(result, running=self.running)]))

    def _field(self, result: Result) -> list[list[lab_text.Cell]]:
        """The speeds over two parameters, which stand below the table where they do not fit beside it."""
        width, below, field = self.text_width - MARGIN, False, list[list[lab_text.Cell]]()
        if len(result.axes) == 2:
            beside = width - max(map(len, lab_text.table(result)))
            field = lab_text.field(result, width if self.has_class("-narrow") else beside)
            below = max(map(len, lab_text.plain(field))) > beside
        self.query_one(".lab-body").set_class(below, "-below")
        return field

    def _answers(self, result: Result) -> list[str]:
        """Show the newest answers of two arms side by side. Returns a sentence on them, if there are any."""
        sides: tuple[dict[tuple[int, int], Trial], ...] = ({}, {})
        for trial in result.trials if len(result.arms) == 2 and not result.axes else ():
            sides[trial.setting][trial.pair] = trial
        both = [pair for pair in sides[0] if pair in sides[1]]
        self.query_one("#lab-answers").display = bool(both)
        if not both:
            return []
        a, b = (side[both[-1]].report for side in sides)
        stretches = diff(clean(a.text), clean(b.text))
        texts = [s.a for s in stretches], [s.b for s in stretches]
        for view, letter, arm, side in zip(self.query("#lab-a, #lab-b").results(Static), "AB", result.arms, texts):
            parts = ((text, "" if s.same else OTHER) for s, text in zip(stretches, side))
            view.update(Content.assemble((f"{letter}  {arm.label}\n\n", "bold $primary"), *parts))
        if a.tokens == b.tokens:
            return [f"both answers are the same, {len(a.tokens)} tokens"]
        return [f"the answers differ ({len(a.tokens)} and {len(b.tokens)} tokens): underlined"]

    # Actions

    def action_edit(self) -> None:
        self.query_one("#lab-what", Input).focus()

    def action_adopt(self) -> None:
        top = best(rows(self.result)) if self.result is not None else None
        if top is None:
            self.say("no best yet: Enter in the line above starts")
        elif top.versus is not None and not top.versus.matters:
            self.say("none is faster by more than noise: Enter on a row uses its setting")
        else:
            self._use(top.index)

    @on(DataTable.RowSelected)
    def _chosen(self, event: DataTable.RowSelected) -> None:
        if (key := row_key(event)) is not None:
            self._use(int(key))

    def _use(self, index: int) -> None:
        if self.result is None:
            return
        arm = self.result.arms[index]
        knobs = self._knobs(arm)
        if knobs == self.chat.state.knobs:
            self.say("that is already the current setting")
            return

        def use() -> None:
            self.chat.tuning.set_all(knobs)
            self.chat.tuning.show()

        self.tuned(use, arm.label, "; s saves it as a preset")

    def _knobs(self, arm: Arm) -> Knobs:
        return adopted(arm, self.result.arms if self.result is not None else (), self.chat.state.knobs, self.BRIEF)

    @property
    def base(self) -> Knobs:
        """What is measured where a setting says nothing: the chat's parameters, greedy unless they were changed."""
        return self.chat.state.recommended.greedy(self.chat.state.knobs)

    def action_save(self) -> None:
        key = self.query_one(_Table).cursor_key
        if self.result is None or key is None:
            self.say("nothing to save yet")
            return
        arm = self.result.arms[int(key)]

        def save(name: str) -> str:
            changes = changed(self._knobs(arm), self.chat.state.recommended)
            self.chat.state.presets.save(Preset(name, f"measured: {arm.label}", changes, self.chat.state.model))
            self.chat.tuning.show()
            return f"preset {name} is saved: F9 in the chat, or /preset {name}"

        ask_line(self.app, "A name for the preset: a to z, 0 to 9, dots, - and _", "tuned", save, self.say)

    def action_view(self, page: str) -> None:
        if self.running:
            self.say("an experiment is running: Esc stops it")
        else:
            self.chat.open_page(page)

    def action_export(self) -> None:
        result = self.result
        if self.running or result is None:
            self.say("nothing to write yet" if result is None else "wait for the end, or press Esc to stop early")
            return

        self.ask_file(ENDINGS, f"{self.WHAT}.csv", partial(write, result))


def _rows(result: Result) -> list[MeasuredRow]:
    return [
        MeasuredRow(
            one.arm.label, one.arm.knobs, one.tok_s.median, one.acceptance, one.step_ms, one.runs,
            "best" if one.best else one.arm.role, lab_text.against(one, result),
        )
        for one in lab_text.sorted_rows(result)
    ]  # fmt: skip


def _heat(lines: list[list[lab_text.Cell]]) -> Content:
    """A field of speeds on a ground that is the stronger the faster they are."""
    parts: list[str | tuple[str, str]] = []
    for line in lines:
        for text, share in line:
            ground = f" on $primary {round(share * STRONGEST)}%" if share else ""
            parts.append((text, f"{'bold' if share == 1 else ''}{ground}".strip()))
        parts.append("\n")
    return Content.assemble(*parts[:-1])


class _Table(Rows):
    """The cursor follows the best until it is moved."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "up", show=False),
        Binding("down", "move(1)", "down", show=False),
    ]
    follow = True

    def action_move(self, count: int) -> None:
        self.follow = False
        self.move_cursor(row=min(max(self.cursor_row + count, 0), self.row_count - 1))

    def show(self, result: Result, width: int) -> int:
        """Fill the table again; the cursor stays on its setting. Returns the number of rows."""
        shown, names = lab_text.sorted_rows(result), lab_text.columns(result, width)
        cells = {str(row.index): line for row, line in zip(shown, lab_text.cells(result, shown, width))}
        bars = [place for place, name in enumerate(names) if not name]
        colors = {str(row.index): dict.fromkeys(bars, "success" if row.best else "primary") for row in shown}
        top = next((str(row.index) for row in shown if row.best), str(shown[0].index))
        self.fill(names, cells, top if self.follow or self.cursor_key not in cells else None, colors)
        return len(shown)
