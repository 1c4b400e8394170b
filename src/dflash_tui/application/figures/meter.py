"""The figures of one turn: counted from its events as they arrive, and its speed over time."""

from __future__ import annotations

import itertools
import time
from collections import deque
from dataclasses import dataclass, field, replace

from dflash_core.events import Piece, PrefillEvent, StepEvent, TextEvent
from dflash_core.record import TurnRecord
from dflash_core.turn_stats import StepTotals, TurnReport, TurnStats, TurnTotals
from dflash_tui.application.amounts import speed

WINDOW_S = 2.0


@dataclass
class Meter:
    """Counts of the turn so far. `rates` is tok/s sampled by the app, for the sparkline.

    `started` is a `time.monotonic()`; the times of tokens and pieces are seconds since then.
    """

    started: float = field(default_factory=time.monotonic)
    prefill: PrefillEvent | None = None
    last: StepEvent | None = None
    turn: TurnTotals = field(default_factory=TurnTotals)
    tokens: int = 0
    earlier: int = 0  # positions of the previous turn, until the prompt has been prefilled
    cold: bool = False  # the first turn after a load
    remaining_share: float = 1.0  # the share of the positions that remains after old turns were left out
    thinking_tokens: int = 0
    first_at: float | None = None
    last_at: float | None = None
    thinking_until: float | None = None
    lengths: deque[int] = field(default_factory=lambda: deque(maxlen=4096))
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=512))
    _recent: deque[tuple[float, int]] = field(default_factory=deque)
    _counted: int = 0  # tokens of another engine

    @classmethod
    def of(cls, record: TurnRecord) -> Meter:
        """The meter as it was at the end of an earlier turn."""
        meter = cls()
        for piece in record.pieces:
            meter.add(piece)
        return meter

    def add(self, piece: Piece) -> None:
        event, at = piece.event, piece.at
        # Another engine counts in all, where it counts.
        count = max(event.count - self.tokens, 0) if isinstance(event, TextEvent) else len(event.tokens)
        self.tokens += count
        self.last_at = at
        self.turn.add(piece)
        if piece.thinking and not piece.text:
            self.thinking_tokens += count
            self.thinking_until = at
        if isinstance(event, PrefillEvent):
            self.prefill = event
            self.first_at = at
            return
        if self.first_at is None:
            self.first_at = at
        self._recent.append((at, count))
        if isinstance(event, TextEvent):
            self._counted += count
            return
        self.last = event
        self.lengths.append(count)

    @property
    def totals(self) -> StepTotals:
        return self.turn.steps

    @property
    def stats(self) -> TurnStats | None:
        """The figures so far; None before the prompt has been read."""
        if self.prefill is None:
            return None
        stats = self.turn.stats(self.prefill, self.decode_s)
        if self.prefill.mode != "remote":
            return stats
        # Its tokens are counted, where they are, without steps.
        return replace(stats, tokens=self.tokens, tokens_per_second=self.overall_rate)

    def shown(self, report: TurnReport | None) -> tuple[TurnStats | None, str, str]:
        """Figures, mode and reason of the turn: those of its report once there is one, else those so far."""
        if report is not None:
            return report.stats, report.mode, report.reason
        event = self.last or self.prefill
        return self.stats, *((event.mode, event.reason) if event is not None else ("", ""))

    @property
    def positions(self) -> int:
        """Used positions of the context: prompt and answer so far."""
        prompt = self.prefill.prompt_tokens if self.prefill is not None else self.earlier
        return round((prompt + self.tokens) * self.remaining_share)

    @property
    def thinking_s(self) -> float:
        if self.first_at is None or self.thinking_until is None:
            return 0.0
        return self.thinking_until - self.first_at

    @property
    def decode_s(self) -> float:
        if self.first_at is None or self.last_at is None:
            return 0.0
        return self.last_at - self.first_at

    @property
    def overall_rate(self) -> float:
        """Tokens of steps over the time since the first token."""
        return (self.totals.tokens + self._counted) / self.decode_s if self.decode_s > 0 else 0.0

    def rate(self, now: float) -> float:
        """Tokens per second over the two seconds before `now`, a `time.monotonic()`."""
        now -= self.started
        while self._recent and now - self._recent[0][0] > WINDOW_S:
            self._recent.popleft()
        if self.first_at is None:
            return 0.0
        span = min(WINDOW_S, now - self.first_at)
        return sum(count for _, count in self._recent) / span if span > 0.05 else 0.0

    def sample(self, now: float) -> None:
        """Add the present rate to the sparkline."""
        if self.totals.steps or self._counted:
            self.rates.append(self.rate(now))


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
