"""Places in the texts of widgets, and their marks on the drawn lines.

A widget's own selection is one stretch of its text. There may be any number of marks, and they are applied to the
drawn lines: a drawn segment says at which column and line of the text it begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter
from textual.strip import Strip
from textual.widget import Widget

TAB = 8  # columns, as Textual draws them


@dataclass(frozen=True, slots=True)
class Stretch:
    """Columns of a line of a text, in characters; tabs are expanded."""

    line: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Mark:
    """A stretch, and the style that its cells get over their own."""

    start: int
    end: int
    style: Style


Marks = Mapping[int, Sequence[Mark]]  # by line, from left to right


def stretches(text: str, searched: str) -> list[Stretch]:
    """Where `searched` occurs in a text, ignoring case."""
    searched = searched.casefold()
    found: list[Stretch] = []
    for number, line in enumerate(text.split("\n") if searched else ()):
        shown = line.expandtabs(TAB)
        folded = shown.casefold()
        # A letter may become several, as ß does: the place of each in what is shown.
        places = [at for at, letter in enumerate(shown) for _ in letter.casefold()]
        at = folded.find(searched)
        while at >= 0:
            end = at + len(searched)
            found.append(Stretch(number, places[at], places[end - 1] + 1))
            at = folded.find(searched, end)
    return found


def place(segment: Segment) -> tuple[int, int] | None:
    """Column and line of the text that a drawn segment begins with; None where it is no text."""
    return segment.style.meta.get("offset") if segment.style is not None else None


def begins_before(strip: Strip, line: int, column: int) -> bool:
    """Whether a drawn line begins at a place of the text, or before it in the same line of the text."""
    first = next((at for segment in strip if (at := place(segment)) is not None), None)
    return first is not None and first[1] == line and first[0] <= column


class Marker(LineFilter):
    """Marks the drawn lines of one widget."""

    def __init__(self, marks: Marks) -> None:
        super().__init__()
        self.marks = marks

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        shown: list[Segment] = []
        for segment in segments:
            at = place(segment)
            shown += [segment] if at is None else _split(segment, at[0], self.marks.get(at[1], ()))
        return shown


def show(widget: Widget, marks: Marks | None) -> None:
    markers = [Marker(marks)] if marks else []
    # Its own method in place of its class's: any widget of a conversation may have a match.
    vars(widget)["get_line_filters"] = lambda: [*type(widget).get_line_filters(widget), *markers]
    widget.refresh()


def _split(segment: Segment, x: int, marks: Sequence[Mark]) -> list[Segment]:
    text, own, _ = segment
    parts: list[Segment] = []
    done = 0
    for mark in marks:
        start, end = max(mark.start - x, done), min(mark.end - x, len(text))
        if start < end:
            parts += [Segment(text[done:start], own), Segment(text[start:end], (own or Style()) + mark.style)]
            done = end
    return [part for part in (*parts, Segment(text[done:], own)) if part.text]
