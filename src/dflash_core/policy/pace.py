"""The present speed in tokens per millisecond, by which time is valued."""

from __future__ import annotations

from dataclasses import dataclass

START_TOKENS, START_ROWS = 3.0, 16  # before any step ran: the assumed tokens of a step, and its rows
MIN_WEIGHT = 0.02


@dataclass(slots=True)
class Pace:
    """Running means of a step's tokens and of its time in units of the cost of START_ROWS rows."""

    tokens: float = START_TOKENS
    units: float = 1.0
    steps: int = 0

    def rate(self, unit_ms: float) -> float:
        """Tokens per millisecond. `unit_ms`: what START_ROWS rows cost now."""
        return self.tokens / (self.units * unit_ms)

    def add(self, tokens: int, ms: float, unit_ms: float, *, drafted: bool = True, steps: int = 1) -> None:
        """Count a step that drafted, or `steps` alike that did not."""
        self.steps += drafted
        weight = max(MIN_WEIGHT, 1 / (5 + self.steps)) if drafted else 1 - (1 - MIN_WEIGHT) ** steps
        self.tokens += weight * (tokens - self.tokens)
        self.units += weight * (ms / unit_ms - self.units)
