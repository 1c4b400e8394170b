"""Bars, sparklines, curves and cells as text. Pure functions, for panels and for pipes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

_EIGHTHS = " ▁▂▃▄▅▆▇█"


def bar(fraction: float, width: int) -> str:
    """A thin horizontal bar of `width` cells, exact to half a cell; anything above zero shows."""
    if width <= 0:
        return ""
    halves = round(min(max(fraction, 0.0), 1.0) * width * 2)
    if fraction > 0:
        halves = max(halves, 1)
    full, half = divmod(halves, 2)
    return ("━" * full + "╸" * half).ljust(width)


def columns(shares: Sequence[float], rows: int) -> list[str]:
    """Columns for shares from 0 to 1, each one cell wide and `rows` high, top line first; anything above zero shows."""
    levels = [max(round(min(share, 1.0) * rows * 8), 1) if share > 0 else 0 for share in shares]
    return ["".join(_EIGHTHS[min(max(level - row * 8, 0), 8)] for level in levels) for row in reversed(range(rows))]


def spark(values: Sequence[float], width: int, rows: int = 1) -> list[str]:
    """Columns from the bottom up, the newest at the right, `rows` lines. Older values are averaged to fit."""
    if width <= 0:
        return [""] * rows
    binned = _binned(values, width)
    high = max(binned, default=0.0)
    shares = [value / high if high > 0 else 0.0 for value in binned]
    return [line.ljust(width) for line in columns(shares, rows)]


def _binned(values: Sequence[float], width: int) -> list[float]:
    if len(values) <= width:
        return list(values)
    edges = [index * len(values) // width for index in range(width + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]


def meter(fraction: float, width: int = 8) -> str:
    """A gauge of whole cells: ▰▰▱▱."""
    full = round(min(max(fraction, 0.0), 1.0) * width)
    if fraction > 0:
        full = max(full, 1)
    return "▰" * full + "▱" * (width - full)


def clip(text: str, width: int) -> str:
    """Cut to `width` cells with an ellipsis. Wide characters are counted as the terminal does."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(width - 1, 0)).rstrip() + "…" if width > 0 else ""


def fit(text: str, width: int) -> str:
    """Exactly `width` cells: clipped or padded."""
    clipped = clip(text, width)
    return clipped + " " * max(width - cell_len(clipped), 0)


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
    given = [mark for mark in marks if math.isfinite(mark.x) and math.isfinite(mark.y)]
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
