"""Find in the conversation: a line for the search words, and moves between the matches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.selection import SELECT_ALL
from textual.widget import Widget
from textual.widgets import Input

from dflash_tui.widgets.fold import Foldable, FoldLine
from dflash_tui.widgets.literal import Static
from dflash_tui.widgets.marks import Mark, Stretch, show, stretches
from dflash_tui.widgets.transcript import Transcript

LAYOUTS = 5  # layouts that may pass until unfolded text has a size
Place = tuple[Widget, tuple[Stretch, ...]]  # of one line each, from top to bottom


class _Words(Input):
    """Here n and N are letters; after Enter they move between the matches."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "submit", "Go to matches")]


class FindBar(Horizontal):
    """Hidden until `begin`. Every match is marked; the current one is highlighted and scrolled to."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"find--place", "find--here"}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Close"),
        Binding("down", "go(1)", "Next"),
        Binding("up", "go(-1)", "Previous"),
    ]

    def __init__(self) -> None:
        super().__init__(id="find")
        self._field = _Words(placeholder="words to find", id="find-words", compact=True)
        self._places: list[Place] = []
        self._at = -1
        self._marks: dict[Widget, dict[int, list[Mark]]] = {}
        self.display = False

    def compose(self) -> ComposeResult:
        yield Static(" find ", id="find-mark")
        yield self._field
        yield Static("", id="find-count")

    @property
    def found(self) -> int:
        return len(self._places)

    def begin(self, words: str = "") -> None:
        """Open the line; with `words`, go to their last match."""
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
        """Move the focus away: while the line has it, n and N are letters."""
        self._transcript.focus()

    def on_resize(self) -> None:
        """Search again: a table has other lines at another width."""
        if self._places:
            self.call_after_refresh(self._look_again)

    def _search(self) -> None:
        self._places = self._all()
        self._at = len(self._places) - 1
        self._show()

    def _look_again(self) -> None:
        """Search again, because the conversation may have grown; keep the current match, or take the next one."""
        before = self._places[self._at] if self._places else None
        earlier = self._places[: max(self._at, 0)]
        self._places = self._all()
        at = self._places.index(before) if before in self._places else sum(one in self._places for one in earlier)
        self._at = min(at, len(self._places) - 1)
        self._mark()

    def _all(self) -> list[Place]:
        searched = self._field.value.strip()
        found: list[Place] = []
        for widget, text in _texts(self._transcript):
            # A table has pieces of several texts side by side in its lines.
            places = getattr(widget, "places", None)
            parts = [(one,) for one in stretches(text, searched)] if places is None else places(searched)
            found += [(widget, part) for part in parts]
        return found

    def action_go(self, count: int) -> None:
        self._look_again()
        if self._places:
            self._at = (self._at + count) % len(self._places)
        self._show()

    def _show(self) -> None:
        self._mark()
        if not self._places:
            return
        widget, place = self._places[self._at]
        folded = [one for one in widget.ancestors if isinstance(one, Foldable) and not one.shows(widget)]
        # In its own frame, after that of the marks: if opened here, folded text would keep the height 0 that it has
        # in this layout.
        if folded:
            self.call_after_refresh(self._open, folded)
        self._look_at(widget, place[0])

    def _open(self, folded: list[Foldable]) -> None:
        for one in folded:
            one.line.open = True
            one.toggled(True)

    def _look_at(self, widget: Widget, place: Stretch, layouts: int = LAYOUTS) -> None:
        """Scroll to a match. Unfolded text gets its size in the next layout. A query of its region before that would
        make Textual build a map that the layout does not know about."""
        if widget.size.area:
            self._transcript.look_at_line(widget, place.line, place.start)
        elif layouts:
            self.call_after_refresh(self._look_at, widget, place, layouts - 1)

    def _mark(self) -> None:
        style, here = (self.get_component_rich_style(name) for name in ("find--place", "find--here"))
        marks: dict[Widget, dict[int, list[Mark]]] = {}
        for number, (widget, parts) in enumerate(self._places):
            for one in parts:
                line = marks.setdefault(widget, {}).setdefault(one.line, [])
                line.append(Mark(one.start, one.end, here if number == self._at else style))
                line.sort(key=lambda mark: mark.start)  # several stretches, if the words are wrapped
        before, self._marks = self._marks, marks
        for widget in {*before, *marks}:
            if before.get(widget) != marks.get(widget):
                show(widget, marks.get(widget))
        nothing = " nothing " if self._field.value.strip() else ""
        count = f" {self._at + 1} of {len(self._places)} " if marks else nothing
        self.query_one("#find-count", Static).update(count)

    def action_leave(self) -> None:
        self.display = False
        self._places, self._at = [], -1
        self._mark()
        self._transcript.anchor()
        self.app.call_later(self.screen.query_one("#prompt").focus)


def _texts(parent: Widget) -> Iterator[tuple[Widget, str]]:
    """Every text of the conversation from top to bottom, with its widget, including folded ones, which open when the
    search goes to them."""
    for child in parent.children:
        folded = isinstance(parent, Foldable) and not isinstance(child, FoldLine) and not child.display
        if not child.display and not folded:
            continue
        if child.children:
            yield from _texts(child)
        elif folded and isinstance(parent, Foldable):
            yield child, parent.folded_text
        elif (got := child.get_selection(SELECT_ALL)) is not None:
            yield child, got[0]
