"""The speed of a finished turn over time, from the times in its record, so that a replay draws the same."""

from __future__ import annotations

import itertools

from dflash_core.events import StepEvent
from dflash_core.record import TurnRecord

BINS = 48


def course(record: TurnRecord) -> list[float]:
    """Tokens per second, in up to 48 equal parts of the time from the first token to the last."""
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
