"""Counts, speeds, shares and durations in short form. Pure functions."""

from __future__ import annotations


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
