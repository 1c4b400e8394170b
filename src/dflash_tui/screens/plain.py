"""Plain decoding, measured: a few dozen steps after the last prompt, discarded afterwards."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import ClassVar

from textual.binding import BindingType
from textual.widget import Widget

from dflash_core.lab.plain import FEWEST_STEPS, PlainRun
from dflash_tui.figures.plain_speeds import when
from dflash_tui.screens.lab import LabScreen
from dflash_tui.settings.keys import bindings
from dflash_tui.text.bars import counted, short, speed
from dflash_tui.text.glossary import sentence
from dflash_tui.widgets.literal import Static


class PlainScreen(LabScreen):
    """Measures when it opens; the stats compare with the result from then on."""

    SCOPE: ClassVar[str] = "plain"
    HEADING: ClassVar[str] = "Plain decoding on this machine"
    WIDTH: ClassVar[int] = 84
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(SCOPE)]

    def body(self) -> Iterable[Widget]:
        yield Static("", id="plain-body")

    def on_mount(self) -> None:
        super().on_mount()
        self.call_after_refresh(self.action_measure)

    def action_measure(self) -> None:
        """Measure, or measure again."""
        lab = self.laboratory()
        turns = self.chat.session.turns if self.chat.session is not None else ()
        if lab is None:
            return
        if not turns:
            self._tell("No prompt yet: send a message first, then come back.")
            return
        self._tell("Steps without drafts are timed after the last prompt; the conversation stays as it is.")
        run = lab.time_plain(turns[-1])
        self.begin(iter(run), lambda _: self._measured(run))

    def _measured(self, run: PlainRun) -> None:
        if run.speed is None:
            self._tell(f"Stopped early: fewer than {FEWEST_STEPS} steps are not enough. m measures again.")
            return
        self.chat.gauges.took_plain_speed(run.speed)
        it = run.speed
        self._tell(
            f"{speed(it.tokens_per_second)} tok/s without drafts: {counted(it.steps, 'step')} at context length "
            f"{short(it.positions)}, {when(it.taken, datetime.now(UTC))}.\n"
            "The stats (F3) compare with this from now on."
        )

    def _tell(self, text: str) -> None:
        self.query_one("#plain-body", Static).update(sentence(text, otherwise="date"))
