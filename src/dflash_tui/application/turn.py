"""A finished turn in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dflash_core.turn_stats import TurnReport


def figures(report: TurnReport) -> str:
    """The turn in one line: what ran, how long it took, how well drafts were accepted."""
    stats = report.stats
    untold = bool(report.source)  # another engine does not tell every figure
    parts = [
        f"{stats.tokens} tokens",
        *([] if untold and not stats.tokens_per_second else [f"{stats.tokens_per_second:.1f} tok/s"]),
        f"first after {stats.ttft_ms:.0f} ms",
    ]
    if stats.read_again:
        parts.append(f"{stats.read_again:,} tokens read again ({stats.read_why})")
    if report.mode != "plain" and not (untold and not stats.steps):
        parts.append(f"acceptance length {stats.acceptance_length:.2f}")
    parts += filter(None, [report.draws])
    why = f" ({report.reason})" if report.reason else ""
    return f"[{report.mode}{why}: {', '.join(parts)}; {report.stop}]"
