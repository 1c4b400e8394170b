"""What was measured before with the loaded pair."""

from __future__ import annotations

import time
from collections.abc import Iterable

from textual import on
from textual.containers import Vertical
from textual.widget import Widget

from dflash_tui.application.amounts import ago, speed
from dflash_tui.application.figures.measurements import MeasuredRow, Measurement, Measurements
from dflash_tui.chat.parts import ChatParts
from dflash_tui.screens.lab import LabScreen
from dflash_tui.screens.page import Rows
from dflash_tui.text.bars import clip
from dflash_tui.widgets.literal import DataTable, Static, row_key

LIST = "Settings", "↑ and ↓ show another measurement, Enter goes to its settings, Enter there uses one."
SETTINGS = "Use", "↑ and ↓ choose a setting, Enter uses it from the next turn, Tab goes to the list."
_BEFORE_FOUND = 30  # cells of the columns before the result, and of the margins


class PastScreen(LabScreen):
    """Earlier measurements of this pair: the list, and the rows of the one under the cursor."""

    SCOPE = "past"
    HEADING = "Measured before"
    WIDTH = 120
    AUTO_FOCUS = "#past-list"

    def __init__(self, chat: ChatParts) -> None:
        super().__init__(chat)
        self._all = Measurements(chat.state.past.folder, chat.state.model).newest_first if chat.state.model else ()
        self._rows: tuple[MeasuredRow, ...] = ()

    def body(self) -> Iterable[Widget]:
        none = "" if self._all else "Nothing measured yet: F8 in the chat tunes."
        yield Static(none, id="past-words", classes="words")
        yield Vertical(Rows(*LIST, id="past-list"), Rows(*SETTINGS, id="past-rows"), classes="lab-body")

    def on_mount(self) -> None:
        rows = ((ago(one.taken.timestamp(), time.time()), one.what, self._found(one)) for one in self._all)
        self.query_one("#past-list", Rows).fill(("when", "what", "found"), _by_place(rows))

    def _found(self, one: Measurement) -> str:
        """The result, cut to its row; the line above shows it whole."""
        return clip(one.words, max(self.text_width - _BEFORE_FOUND, 8))

    @on(DataTable.RowHighlighted, "#past-list")
    def _show(self, event: DataTable.RowHighlighted) -> None:
        if (key := row_key(event)) is None:
            return
        one = self._all[int(key)]
        self._rows = one.rows
        words = self.query_one("#past-words", Static)
        words.update(one.words)
        words.set_class(self._found(one) == one.words, "-in-the-row")
        headings = ("", "setting", "tok/s", "difference", "tok/step", "ms/step", "runs")
        self.query_one("#past-rows", Rows).fill(headings, _by_place(map(_cells, one.rows)), cursor="0")

    @on(DataTable.RowSelected)
    def _chosen(self, event: DataTable.RowSelected) -> None:
        if event.data_table.id == "past-list":
            self.query_one("#past-rows", Rows).focus()
        elif (key := row_key(event)) is not None:
            row = self._rows[int(key)]
            self.tuned(lambda: self.chat.tuning.set_all(row.knobs), row.label)


def _cells(row: MeasuredRow) -> tuple[str, ...]:
    mark = "★" if row.mark == "best" else ""
    name = row.label + (f"  {row.mark}" if row.mark and row.mark not in ("best", row.label) else "")
    return mark, name, speed(row.tok_s), row.against, f"{row.acceptance:.2f}", f"{row.step_ms:.1f}", str(row.runs)


def _by_place(rows: Iterable[tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    return {str(place): row for place, row in enumerate(rows)}
