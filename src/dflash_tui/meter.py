"""The running figures of one turn, counted from its events as they arrive."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from dflash_core.events import PrefillEvent, StageTimes, StepEvent, StepTree
from dflash_tui.running import Arrival

WINDOW_S = 2.0


@dataclass
class Meter:
    """Counts of a turn so far. `rates` is tok/s sampled by the app, for the sparkline."""

    started: float = field(default_factory=time.monotonic)
    prefill: PrefillEvent | None = None
    last: StepEvent | None = None
    steps: int = 0
    tokens: int = 0
    thinking_tokens: int = 0
    first_at: float | None = None
    last_at: float | None = None
    thinking_until: float | None = None
    lengths: deque[int] = field(default_factory=lambda: deque(maxlen=4096))
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=512))
    drafted: list[int] = field(default_factory=list)
    reached: list[int] = field(default_factory=list)
    _committed: int = 0
    _stage: dict[str, float] = field(default_factory=dict)
    _recent: deque[tuple[float, int]] = field(default_factory=deque)

    def add(self, arrival: Arrival) -> None:
        """Count one piece."""
        event, at = arrival.piece.event, arrival.at
        count = len(event.tokens)
        self.tokens += count
        self.last_at = at
        if arrival.piece.thinking and not arrival.piece.text:
            self.thinking_tokens += count
            self.thinking_until = at
        if isinstance(event, PrefillEvent):
            self.prefill = event
            self.first_at = at
            return
        if self.first_at is None:
            self.first_at = at
        self.last = event
        self.steps += 1
        self._committed += count
        self.lengths.append(count)
        self._recent.append((at, count))
        while len(self.drafted) < event.drafted_depth:
            self.drafted.append(0)
            self.reached.append(0)
        for depth in range(event.drafted_depth):
            self.drafted[depth] += 1
            self.reached[depth] += depth < event.accepted_depth
        for name in ("draft", "tree", "verify", "accept", "commit"):
            self._stage[name] = self._stage.get(name, 0.0) + getattr(event.stages, name)

    @property
    def tree(self) -> StepTree | None:
        return self.last.tree if self.last is not None else None

    @property
    def acceptance(self) -> float:
        """Committed tokens per step so far."""
        return self._committed / self.steps if self.steps else 0.0

    @property
    def accept_rates(self) -> tuple[float, ...]:
        return tuple(reached / drafted for reached, drafted in zip(self.reached, self.drafted, strict=True))

    @property
    def stage_ms(self) -> StageTimes:
        """Mean milliseconds per step."""
        count = max(self.steps, 1)
        return StageTimes(**{name: total / count for name, total in self._stage.items()})

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
        return self._committed / self.decode_s if self.decode_s > 0 else 0.0

    def rate(self, now: float) -> float:
        """Tokens per second over the last two seconds."""
        while self._recent and now - self._recent[0][0] > WINDOW_S:
            self._recent.popleft()
        if self.first_at is None:
            return 0.0
        span = min(WINDOW_S, now - self.first_at)
        return sum(count for _, count in self._recent) / span if span > 0.05 else 0.0

    def sample(self, now: float) -> None:
        """Keep the present rate for the sparkline."""
        if self.steps:
            self.rates.append(self.rate(now))
