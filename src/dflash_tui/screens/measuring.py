"""What the screens that run settings on prompts share: the input line, the run, the exported file."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.widgets import Input

from dflash_core.errors import DFlashError
from dflash_core.lab.export import ENDINGS, check_path, write
from dflash_core.lab.laboratory import Laboratory
from dflash_core.lab.progress import ExperimentProgress
from dflash_core.lab.sweep import Sweep, SweepResult
from dflash_core.lab.table import best, rows
from dflash_tui.chat.experiment import Experiment
from dflash_tui.chat.host import ChatHost
from dflash_tui.chat.new_file import new_path
from dflash_tui.figures.measurements import Row, What
from dflash_tui.screens.lab import LabScreen
from dflash_tui.text.bars import counted
from dflash_tui.text.glossary import QUOTED, figure
from dflash_tui.widgets.line_dialog import LineScreen
from dflash_tui.widgets.literal import Static

REDRAW_S = 1.0


class Line(Input):
    """The line that says what to run."""

    HELP = "Enter runs what the line says; Tab goes to the results."
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "submit", "Run")]


class MeasuringScreen(LabScreen):
    """`text` says what to run; with `at_once` it runs when the screen opens."""

    EXAMPLE: ClassVar[str] = ""
    EXAMPLES: ClassVar[tuple[tuple[str, str], ...]] = ()
    FILE: ClassVar[str] = ""
    WHAT: ClassVar[What]
    AUTO_FOCUS = "#lab-what"

    def words(self, result: SweepResult) -> str:
        """The result in a sentence."""
        raise NotImplementedError

    def __init__(self, chat: ChatHost, text: str = "", *, at_once: bool = False) -> None:
        super().__init__(chat)
        self._text, self._at_once = text, at_once
        self._file = self.FILE  # the name that was typed last, which may have been refused
        self.sweep: Sweep | None = None
        self.result: SweepResult | None = None
        self._drawn_at = 0.0

    def hint(self, action: str, label: str) -> str:
        of_results = action in ("adopt", "export") or action.startswith("take(")
        return super().hint(action, label) if self.result is not None or not of_results else ""

    def plan(self, text: str, lab: Laboratory) -> Sweep:
        """The runs that `text` asks for. Raises DFlashError."""
        raise NotImplementedError

    def line(self) -> Horizontal:
        """The row with the input line."""
        field = Line(self._text, placeholder=self.EXAMPLE, id="lab-what", compact=True)
        return Horizontal(Static("❯", id="lab-mark"), field, id="lab-line")

    def examples(self) -> Static:
        """Examples for the line, shown until there is a result."""
        rows = (f" {example:<30}{what}\n" if example else f" {what}\n\n" for example, what in self.EXAMPLES)
        return Static(Content.styled("\n" + "".join(rows), figure(QUOTED, "$foreground 80%")), id="lab-examples")

    def draw(self) -> None:
        self.query_one("#lab-examples").display = self.result is None and not self.running

    def on_mount(self) -> None:
        super().on_mount()
        if self._at_once:
            self.call_after_refresh(self.run_experiment)

    @on(Input.Submitted, "#lab-what")
    def run_experiment(self) -> None:
        """Measure what the line says."""
        lab = self.laboratory()
        if lab is None:
            return
        try:
            self.sweep = self.plan(self.query_one("#lab-what", Input).value, lab)
        except DFlashError as error:
            self.say(error)
            return
        self.result = None
        self.begin(iter(self.sweep), self._ended, self.sweep.cancel)
        self.draw()
        self.focus_results()

    def focus_results(self) -> None:
        """Move the focus from the line to the results, so that letters are keys again."""

    def looked(self) -> None:
        """While runs come in: show their results, but not too often."""
        now = time.monotonic()
        if self.sweep is not None and now - self._drawn_at > REDRAW_S:
            self._drawn_at = now
            self._take()

    def _ended(self, experiment: Experiment) -> None:
        self._take()
        kept = self.measurements
        if self.result is not None and self.result.trials and kept is not None:
            kept.add(self.WHAT, self.words(self.result), _rows(self.result))
        if experiment.error is None and self.result is not None and not self.result.complete:
            self.say(f"cut short; kept: {counted(len(self.result.trials), 'run')}")

    def _take(self) -> None:
        result = self.sweep.result if self.sweep is not None else None
        # Draw the end even if all runs were shown before: the notes say that the measurement is complete.
        if result is not None and result.trials and (result != self.result or not self.running):
            self.result = result
            self.draw()

    # Actions

    def action_edit(self) -> None:
        """Change what is run."""
        self.query_one("#lab-what", Input).focus()

    def action_export(self) -> None:
        """Write what was measured to a file."""
        if self.running or self.result is None:
            self.say("nothing to write yet" if self.result is None else "wait for the end, or press Esc to stop early")
            return
        question = f"Write to which file? Its ending decides: {' '.join(ENDINGS)}"
        self.app.push_screen(LineScreen(question, self._file), self._export)

    def _export(self, name: str | None) -> None:
        if not name or self.result is None:
            return
        self._file, result = name, self.result
        try:
            path = check_path(new_path(name))
        except DFlashError as error:
            self.say(error)
            return

        def writing() -> Iterator[ExperimentProgress]:
            yield ExperimentProgress(0, 1, None, f"writing {path}")
            write(result, path)
            yield ExperimentProgress(1, 1, None, f"written: {path}")

        self.begin(writing(), lambda it: None if it.error else self.say(f"written: {path}"))


def _rows(result: SweepResult) -> list[Row]:
    its = rows(result)
    top = best(its)
    return [
        Row(
            one.setting.label, one.setting.knobs, one.tok_s.median, one.acceptance, one.step_ms, one.runs,
            "best" if one is top else "",
        )
        for one in its
    ]  # fmt: skip
