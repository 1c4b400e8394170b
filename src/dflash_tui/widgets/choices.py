"""Words side by side of which one is chosen, on as many lines as they need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from textual.events import Click
from textual.widget import Widget


@dataclass(frozen=True, slots=True)
class Place:
    """Where a word stands: `index` among the words, its line, the cell it begins at, and its width in cells."""

    index: int
    line: int
    start: int
    width: int


def places(words: Sequence[str], left: int, width: int) -> list[Place]:
    """Each word with a cell on both sides for its brackets, from cell `left` on; in lines of `width` cells where a
    word fits at all. Neighbours share the cell between them where that is what makes them one line."""
    cells = [cell_len(word) + 2 for word in words]
    end = left + sum(cells)
    shared = 1 if end > width >= end - (len(words) - 1) else 0
    found: list[Place] = []
    line, at = 0, left
    for index, needed in enumerate(cells):
        if at > left and at + needed > width:
            line, at = line + 1, left
        found.append(Place(index, line, at, needed))
        at += needed - shared
    return found


def height(words: Sequence[str], left: int, width: int) -> int:
    """Lines that the words take; one where there are none."""
    return max((place.line for place in places(words, left, width)), default=0) + 1


def clicked(words: Sequence[str], left: int, widget: Widget, event: Click) -> int | None:
    """The word that was clicked on."""
    offset = event.get_content_offset(widget)
    if offset is None:
        return None
    found = places(words, left, widget.size.width)
    on = (one.index for one in found if one.line == offset.y and one.start <= offset.x < one.start + one.width)
    return next(on, None)


def drawn(words: Sequence[str], chosen: int | None, left: int, width: int) -> list[tuple[str, str]]:
    """What stands from cell `left` of the first line on; the chosen word is in brackets."""
    parts: list[tuple[str, str]] = []
    last, at = 0, left
    for place in places(words, left, width):
        if place.line > last:
            parts.append(("\n" + " " * left, ""))
            last, at = place.line, left
        here = place.index == chosen
        text = f"‹{words[place.index]}›" if here else f" {words[place.index]} "
        if place.start < at and here:  # the cell is shared, and a bracket goes before a blank
            parts[-1] = (parts[-1][0][:-1], parts[-1][1])
        elif place.start < at:
            text = text[1:]
        parts.append((text, "bold $primary" if here else "$foreground 70%"))
        at = place.start + place.width
    return parts
