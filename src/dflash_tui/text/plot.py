"""A curve in characters: marked points joined by dots. Pure functions, for panels and for pipes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

LINE = "·"


@dataclass(frozen=True, slots=True)
class Mark:
    """A point; `sign` is one cell wide."""

    x: float
    y: float
    sign: str = "●"


def plot(
    marks: Sequence[Mark], width: int, height: int, title: str = "", span: tuple[float, float] | None = None
) -> list[str]:
    """Lines of at most `width` cells, `height` of them: a title, the field, an axis and its labels.

    The field spans the minimum to the maximum value, which label it; it does not begin at 0. If two points share a
    cell, the later one of `marks` shows. Points that are not finite are left out. Without a point, or without enough
    space, there is only the title. `span`: the ends of the axis, which enclose all points.
    """
    given = [mark for mark in marks if _finite(mark.x) and _finite(mark.y)]
    marks = sorted(given, key=lambda mark: mark.x)
    rows = height - 2 - bool(title)
    low, high = min((m.y for m in marks), default=0.0), max((m.y for m in marks), default=0.0)
    labels = [_number(high, high - low), _number(low, high - low)]
    gutter = max(map(len, labels)) + 1
    columns = width - gutter - 1
    head = [title[:width]] if title else []
    if not marks or rows < 2 or columns < 8:
        return head
    ends = span or (marks[0].x, marks[-1].x)
    field = [[" "] * columns for _ in range(rows)]

    def cell(x: float, y: float) -> tuple[int, int]:
        return _place(x, *ends, columns), rows - 1 - _place(y, low, high, rows)

    for one, other in itertools.pairwise(marks):
        (a, b), (c, d) = cell(one.x, one.y), cell(other.x, other.y)
        for step in range(1, c - a):
            field[round(b + (d - b) * step / (c - a))][a + step] = LINE
    for mark in given:
        column, row = cell(mark.x, mark.y)
        field[row][column] = mark.sign
    out = [*head]
    for number, line in enumerate(field):
        label = labels[0] if number == 0 and high > low else labels[1] if number == rows - 1 else ""
        out.append(f"{label:>{gutter - 1}} {'┤' if label else '│'}{''.join(line)}".rstrip())
    out.append(" " * gutter + "└" + "─" * columns)
    out.append(" " * (gutter + 1) + _ticks(sorted({*ends, *(mark.x for mark in marks)}), columns))
    return out


def _ticks(xs: Sequence[float], columns: int) -> str:
    """The values of x under their points: always the first and last, others where they fit."""
    line = [" "] * columns
    taken: list[range] = []
    ends = (xs[0], xs[-1])
    for x in (*dict.fromkeys(ends), *(x for x in xs if x not in ends)):
        text = f"{x:g}"
        at = min(max(_place(x, xs[0], xs[-1], columns) - len(text) // 2, 0), columns - len(text))
        span = range(at - 2, at + len(text) + 2)
        if all(span.stop <= other.start + 2 or span.start >= other.stop - 2 for other in taken):
            line[at : at + len(text)] = text
            taken.append(span)
    return "".join(line).rstrip()


def _place(value: float, low: float, high: float, cells: int) -> int:
    return round((value - low) / (high - low) * (cells - 1)) if high > low else 0


def _number(value: float, span: float) -> str:
    """Enough digits to distinguish the ends of the axis."""
    digits = 0 if span >= 10 or (span == 0 and value >= 100) else 1 if span >= 1 else 2
    return f"{value:.{digits}f}"


def _finite(value: float) -> bool:
    return abs(value) != float("inf") and value == value
