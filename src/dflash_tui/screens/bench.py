"""What the app costs the decoder, measured on a screen of its own: answers as they come, then the table."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from typing import ClassVar

from textual.binding import BindingType
from textual.containers import Horizontal
from textual.widget import Widget

from dflash_core.errors import DFlashError
from dflash_tui.application.experiment import Experiment
from dflash_tui.chat.ui_bench import Place, measure_tax, tax_notes, tax_table
from dflash_tui.screens.lab import LabScreen
from dflash_tui.settings.keys import bindings
from dflash_tui.text.glossary import sentence
from dflash_tui.widgets.literal import Static
from dflash_tui.widgets.stats import of_meter
from dflash_tui.widgets.stats_panel import StatsPanel
from dflash_tui.widgets.transcript import Transcript

ROUNDS = 3


class BenchScreen(LabScreen):
    """Measures when it opens. Its prompts are no part of the conversation."""

    SCOPE: ClassVar[str] = "bench"
    HEADING: ClassVar[str] = "What the app costs the decoder"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(SCOPE)]
    AUTO_FOCUS = "#transcript"

    def body(self) -> Iterable[Widget]:
        about = "Four prompts, in turn shown here and not shown. They are no part of the conversation."
        yield Static(about, id="bench-about")
        yield Horizontal(Transcript(), StatsPanel(), classes="lab-body")
        yield Static("", id="bench-result")

    def on_mount(self) -> None:
        super().on_mount()
        self.call_after_refresh(self.action_start)

    def action_start(self) -> None:
        """Measure, from the beginning."""
        chat = self.chat
        if chat.state.session is None or chat.state.busy or chat.state.experiment is not None:
            self.say("/bench needs a loaded model, and no answer under way")
            return
        chat.plain.stop()
        # It is a task, not a thread, but Esc, Ctrl+C and the app's end stop it like a thread.
        chat.state.experiment = running = Experiment(iter(()), lambda: self._progress("stopping after this step"))
        self._show_result("")
        self.run_worker(self._measure(running), exclusive=True, group="bench")

    async def _measure(self, running: Experiment) -> None:
        measured = copy(self.chat.state)  # its turns replace none of the conversation
        stats = self.query_one(StatsPanel)

        def figures() -> None:
            turn = measured.turn
            if turn.meter is not None and self.is_mounted:
                stats.show(of_meter(turn.meter, turn.report, None, running=measured.busy))

        try:
            place = Place(measured, self, figures)
            tax = await measure_tax(place, rounds=ROUNDS, say=self._progress, stopping=lambda: running.stopping)
        except DFlashError as error:
            self.say(f"nothing was measured: {error}")
        else:
            self._show_result(f"{tax_table(tax)}\n\n{tax_notes(tax)}")
        finally:
            self.chat.state.experiment = None
            self._progress("")

    def _progress(self, text: str) -> None:
        for line in self.query("#lab-progress").results(Static):  # none once the page is closed
            line.update(sentence(f" {text}", otherwise="progress"))
            self.refresh_bindings()

    def _show_result(self, text: str) -> None:
        for line in self.query("#bench-result").results(Static):
            self.query_one(".lab-body").display = not text
            line.update(sentence(text, otherwise="tax"))
