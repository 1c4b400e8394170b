"""The panel of figures of the running turn, or of the last one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content

from dflash_tui.widgets.literal import Static
from dflash_tui.widgets.panel import Panel, redraw

if TYPE_CHECKING:
    from dflash_tui.widgets.stats import Figures

_EMPTY = Content.assemble(
    ("No turn yet\n", "bold"), ("send a message to see speed and acceptance here", "$foreground 70%")
)


class StatsPanel(Panel):
    """Speed, acceptance per step and per draft position, time by stage."""

    def __init__(self) -> None:
        super().__init__("stats")
        self._figures: Figures | None = None

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(_EMPTY, id="stats-body")

    def show(self, figures: Figures | None) -> None:
        """Draw the figures of a turn; None before the first."""
        self._figures = figures
        self.draw()

    def draw(self) -> None:
        body = self.query_one("#stats-body", Static)
        if self._figures is None:
            redraw(body, _EMPTY)
            return
        from dflash_tui.widgets.stats import drawn  # with the first turn

        redraw(body, drawn(self._figures, max(self.text_width, 24)))
