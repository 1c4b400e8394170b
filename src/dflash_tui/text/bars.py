"""Bars, sparklines and short numbers as text. Pure functions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

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


def short(count: float) -> str:
    """A short form of a count: 842, 1.9k, 32k, 1.1M."""
    for limit, unit in ((1_000_000, "M"), (1_000, "k")):
        if count >= limit:
            value = count / limit
            return f"{value:.1f}{unit}" if value < 10 and round(value, 1) != round(value) else f"{value:.0f}{unit}"
    return f"{count:.0f}"


def counted(count: int, what: str) -> str:
    """A count with its noun: 1 token, 2 tokens."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def speed(rate: float) -> str:
    """Tokens per second; one decimal below 10."""
    return f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}"


def change(shown: str, beside: str) -> float:
    """The relative difference between two figures as displayed, after rounding; 0 if `beside` is 0."""
    before = float(beside)
    return float(shown) / before - 1 if before else 0.0


def percent(share: float) -> str:
    """A relative difference: +3.1 %, −12 %."""
    value = abs(share) * 100
    sign = "+" if share > 0 else "−" if share < 0 else "±"
    return f"{sign}{value:.1f} %" if value < 9.95 else f"{sign}{value:.0f} %"


def chance(value: float) -> str:
    """A probability in four cells or fewer: 1.0, .93, .001 as <.01."""
    if value >= 0.995:
        return "1.0"
    if 0 < value < 0.005:
        return "<.01"
    return f"{value:.2f}"[1:]


def seconds(value: float) -> str:
    """A duration: 84 ms, 1.4 s, 2 m 05 s."""
    if value < 0.995:
        return f"{value * 1000:.0f} ms"
    if value < 60:
        return f"{value:.1f} s"
    return f"{int(value // 60)} m {int(value % 60):02d} s"


def clip(text: str, width: int) -> str:
    """Cut to `width` cells with an ellipsis. Wide characters are counted as the terminal does."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(width - 1, 0)).rstrip() + "…" if width > 0 else ""


def fit(text: str, width: int) -> str:
    """Exactly `width` cells: clipped or padded."""
    from rich.cells import cell_len

    clipped = clip(text, width)
    return clipped + " " * max(width - cell_len(clipped), 0)
