"""Words side by side, one of them chosen, on as many lines as they need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from textual.events import Click
from textual.widget import Widget


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a word: its `index`, its line, its first cell, and its text as drawn."""

    index: int
    line: int
    start: int
    text: str

    @property
    def end(self) -> int:
        return self.start + cell_len(self.text)


def places(words: Sequence[str], chosen: int | None, left: int, width: int) -> list[Place]:
    """Place the words from cell `left` on in lines of `width` cells, if a word fits at all. Each has a cell on both
    sides for its brackets; if only one blank between words makes them fit on one line, that is used instead."""
    wide = left + sum(cell_len(word) + 2 for word in words)
    close = wide > width >= wide - (len(words) - 1)
    found: list[Place] = []
    line, at = 0, left
    for index, word in enumerate(words):
        text = f"‹{word}›" if index == chosen else word if close else f" {word} "
        if at > left and at + cell_len(text) > width:
            line, at = line + 1, left
        found.append(Place(index, line, at, text))
        at = found[-1].end + close
    return found


def height(words: Sequence[str], left: int, width: int) -> int:
    """Lines that the words take, whichever is chosen; one if there are none."""
    return max((place.line for place in places(words, 0, left, width)), default=0) + 1


def clicked(words: Sequence[str], chosen: int | None, left: int, widget: Widget, event: Click) -> int | None:
    offset = event.get_content_offset(widget)
    if offset is None:
        return None
    found = places(words, chosen, left, widget.size.width)
    on = (one.index for one in found if one.line == offset.y and one.start <= offset.x < one.end)
    return next(on, None)


def drawn(words: Sequence[str], chosen: int | None, left: int, width: int) -> list[tuple[str, str]]:
    """The drawn parts from cell `left` of the first line on; the chosen word is in brackets."""
    parts: list[tuple[str, str]] = []
    line, at = 0, left
    for place in places(words, chosen, left, width):
        if place.line > line:
            parts.append(("\n" + " " * left, ""))
            line, at = place.line, left
        parts.append((" " * (place.start - at), ""))
        parts.append((place.text, "bold $primary" if place.index == chosen else "$foreground 70%"))
        at = place.end
    return parts
