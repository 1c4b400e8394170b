"""Whether a turn was faster than plain decoding."""

from __future__ import annotations

from dataclasses import dataclass

from dflash_tui.application.amounts import speed

JUDGED_STEPS, JUDGED_TOKENS = 32, 64


@dataclass(frozen=True, slots=True)
class Verdict:
    """A turn against plain decoding; `open` says why there is none yet, and "" that there is one."""

    ratio: str = ""
    slower: bool = False
    open: str = ""


def verdict(rate: float, plain: float, steps: int, tokens: int, *, running: bool, cold: bool) -> Verdict:
    """Whether drafts paid in a turn. None while it runs, from too little, or in the first turn after a load, whose
    steps compile kernels and fill caches (`cold`)."""
    if running:
        return Verdict(open="is compared when the answer is complete")
    if cold:
        return Verdict(open="is compared from the second answer after a load")
    if steps < JUDGED_STEPS or tokens < JUDGED_TOKENS:
        return Verdict(open=f"is compared after {JUDGED_STEPS} steps and {JUDGED_TOKENS} tokens")
    return Verdict(as_fast(rate, plain), times(rate, plain) < 1)


def times(rate: float, plain: float) -> float:
    """The speedup over plain decoding, computed from both speeds as shown; 0 if not known."""
    return float(speed(rate)) / float(speed(plain)) if float(speed(plain)) else 0.0


def as_fast(rate: float, plain: float) -> str:
    """`times` as text: 3.2x, and below 1 with one more digit, so that 0.97x does not read as the same speed."""
    ratio = times(rate, plain)
    return f"{ratio:.2f}x" if ratio < 1 else f"{ratio:.1f}x"
