"""Find in the conversation: a line for the words, and the places where they are, to go along."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.geometry import Offset
from textual.selection import SELECT_ALL, Selection
from textual.widget import Widget
from textual.widgets import Input

from dflash_tui.text.glossary import sentence
from dflash_tui.widgets.fold import Foldable
from dflash_tui.widgets.literal import Static
from dflash_tui.widgets.transcript import Transcript


class _Words(Input):
    """What to find. n and N are letters here; after Enter they go along the places."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "submit", "To the places")]


class FindBar(Horizontal):
    """Hidden until `begin`. Every place is marked as a selection is; the present one is scrolled to."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Close"),
        Binding("down", "go(1)", "Next"),
        Binding("up", "go(-1)", "Previous"),
    ]

    def __init__(self) -> None:
        super().__init__(id="find")
        self._field = _Words(placeholder="words to find", id="find-words", compact=True)
        self._places: list[tuple[Widget, Selection]] = []
        self._at = -1
        self.current: Widget | None = None  # what holds the place that n and N have come to
        self.display = False

    def compose(self) -> ComposeResult:
        yield Static(" find ", id="find-mark")
        yield self._field
        yield Static("", id="find-count")

    @property
    def found(self) -> int:
        """Places with the words."""
        return len(self._places)

    def begin(self, words: str = "") -> None:
        """Open the line; with `words`, go to the last place that has them."""
        self.display = True
        self._field.value = words or self._field.value
        if words:
            self._search()
            self._transcript.focus()
        else:
            self._field.focus()

    @property
    def _transcript(self) -> Transcript:
        return self.screen.query_one(Transcript)

    @on(Input.Changed)
    def _typed(self) -> None:
        if self.display:
            self._search()

    @on(Input.Submitted)
    def _entered(self) -> None:
        """n and N are letters while the line has the focus."""
        self._transcript.focus()

    def _search(self) -> None:
        wanted = self._field.value.strip().casefold()
        self._places = list(self._all(wanted)) if wanted else []
        self._at = len(self._places) - 1
        self._show()

    def _all(self, wanted: str) -> list[tuple[Widget, Selection]]:
        found: list[tuple[Widget, Selection]] = []
        for widget in (one for turn in self._transcript.turns for one in turn.walk_children(Widget)):
            if widget.children or not widget.display or (got := widget.get_selection(SELECT_ALL)) is None:
                continue
            for y, line in enumerate(got[0].split("\n")):
                x, folded = 0, line.casefold()
                while (x := folded.find(wanted, x)) >= 0:
                    found.append((widget, Selection(Offset(x, y), Offset(x + len(wanted), y))))
                    x += len(wanted)
        return found

    def action_go(self, count: int) -> None:
        """The next place, or the one before; at the end it begins again."""
        if self._places:
            self._at = (self._at + count) % len(self._places)
            self._show()

    def _show(self) -> None:
        count = self.query_one("#find-count", Static)
        if not self._places:
            self.screen.clear_selection()
            self.current = None
            count.update(" nothing " if self._field.value.strip() else "")
            return
        count.update(sentence(f" {self._at + 1} of {len(self._places)} ", otherwise="found"))
        widget, place = self._places[self._at]
        marked: dict[Widget, Selection] = {}
        for one, selection in self._places:
            marked.setdefault(one, selection)
        marked[widget] = place
        self.screen.selections = marked
        # The places may be the same as before, but one of them is the present one.
        before, self.current = self.current, widget
        for one in filter(None, {before, widget}):
            one.selection_updated(marked.get(one))
        folded = [one for one in widget.ancestors if isinstance(one, Foldable) and not widget.region.area]
        for above in folded:
            above.toggled(True)
        if folded:  # its height is known after the next layout
            self._transcript.call_after_refresh(self._transcript.look_at, widget, top=False)
        else:
            self._transcript.look_at(widget, top=False)

    def action_leave(self) -> None:
        """Close; what was found is no longer marked."""
        self.display = False
        self._places, self._at, self.current = [], -1, None
        self.screen.clear_selection()
        self._transcript.anchor()
        self.app.call_later(self.screen.query_one("#prompt").focus)
