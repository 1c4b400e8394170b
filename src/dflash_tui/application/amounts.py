"""Counts, speeds, shares, durations and times in short form, and a finished turn in a line."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dflash_core.turn_stats import TurnReport


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


def rates(per_second: float, per_step: float) -> tuple[str, str]:
    """Tokens per second and tokens per step; – before the first step."""
    return speed(per_second) if per_second else "–", f"{per_step:.2f}" if per_step else "–"


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


def ago(seconds: float, now: float) -> str:
    """A time in the past in everyday form: 5 min ago, 3 h ago, yesterday 14:05, Tue 09:30, 2026-01-31."""
    past = now - seconds
    if past < 0 or past >= 7 * 86_400:
        return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d")
    if past < 3600:
        return f"{int(past // 60)} min ago" if past >= 60 else "just now"
    there, here = datetime.fromtimestamp(seconds), datetime.fromtimestamp(now)
    if there.date() == here.date():
        return f"{int(past // 3600)} h ago"
    if (here.date() - there.date()).days == 1:
        return f"yesterday {there:%H:%M}"
    return f"{there:%a %H:%M}"


def figures(report: TurnReport) -> str:
    """The turn in one line: what ran, how long it took, how well drafts were accepted."""
    stats = report.stats
    parts = [
        counted(stats.tokens, "token"),
        *([f"{stats.tokens_per_second:.1f} tok/s"] if stats.tokens_per_second else []),
        f"first after {stats.ttft_ms:.0f} ms",
    ]
    if stats.read_again:
        parts.append(f"{stats.read_again:,} tokens read again ({stats.read_why})")
    if report.mode != "plain" and stats.steps:
        parts.append(f"acceptance length {stats.acceptance_length:.2f}")
    parts += filter(None, [report.draws])
    why = f" ({report.reason})" if report.reason else ""
    return f"[{report.mode}{why}: {', '.join(parts)}; {report.stop}]"
