"""The speed of a finished turn over time, from the times in its record, so that a replay draws the same."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash_tui.application.amounts import speed

if TYPE_CHECKING:
    from dflash_core.record import TurnRecord

BINS = 48
JUDGED_STEPS, JUDGED_TOKENS = 32, 64


@dataclass(frozen=True, slots=True)
class Verdict:
    """A turn against plain decoding; `open` says why there is none yet, and "" that there is one."""

    said: str = ""
    slower: bool = False
    open: str = ""


def verdict(rate: float, plain: float, steps: int, tokens: int, *, running: bool, cold: bool) -> Verdict:
    """Whether drafts paid in a turn. None while it runs, from too little, or in the first turn after a load, whose
    steps compile kernels and fill caches (`cold`)."""
    if running:
        return Verdict(open="compared when the answer is complete")
    if cold:
        return Verdict(open="compared from the second answer after a load on")
    if steps < JUDGED_STEPS or tokens < JUDGED_TOKENS:
        return Verdict(open=f"compared from {JUDGED_STEPS} steps and {JUDGED_TOKENS} tokens on")
    return Verdict(as_fast(rate, plain), times(rate, plain) < 1)


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
