"""The speed of a finished turn over time, from the times in its record, so that a replay draws the same."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from dflash_tui.text.bars import speed

if TYPE_CHECKING:
    from dflash_core.record import TurnRecord

BINS = 48


def times(rate: float, plain: float) -> float:
    """The speedup over plain decoding, computed from both speeds as shown; 0 if not known."""
    return float(speed(rate)) / float(speed(plain)) if float(speed(plain)) else 0.0


def as_fast(rate: float, plain: float) -> str:
    """`times` as text: 3.2x, and below 1 with one more digit, so that 0.97x does not read as the same speed."""
    ratio = times(rate, plain)
    return f"{ratio:.2f}x" if ratio < 1 else f"{ratio:.1f}x"


def course(record: TurnRecord) -> list[float]:
    """Tokens per second, in up to 48 equal parts of the time from the first token to the last."""
    from dflash_core.events import StepEvent  # a late import: not needed before the first turn

    timed = [
        (before.at, piece.at, len(piece.event.tokens))
        for before, piece in itertools.pairwise(record.pieces)
        if isinstance(piece.event, StepEvent) and piece.at > before.at
    ]
    if not timed:
        return []
    start, end = timed[0][0], timed[-1][1]
    bins = [0.0] * min(BINS, max(len(timed) // 2, 1))
    width = (end - start) / len(bins)
    for began, ended, tokens in timed:
        # A step's tokens are spread over the time it took, so that a slow step is a dip and not a gap beside a spike.
        for place in range(int((began - start) / width), min(int((ended - start) / width) + 1, len(bins))):
            low, high = max(began, start + place * width), min(ended, start + (place + 1) * width)
            bins[place] += tokens * max(high - low, 0.0) / (ended - began)
    return [tokens / width for tokens in bins]
