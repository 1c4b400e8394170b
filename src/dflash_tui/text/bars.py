"""Bars, sparklines and cells as text. Pure functions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

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
