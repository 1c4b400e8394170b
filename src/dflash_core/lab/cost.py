"""The cost of a step by the draft tokens that it verifies: measured, or estimated by a line through measurements.

    between two measured counts     the straight line between their medians    "interpolated"
    outside of them                 the least-squares line through all medians  "extrapolated"

The line is extrapolated only over a multiple of the measured range, and only where it rises: two adjacent counts differ
by noise, which extrapolation would multiply.

Real costs have jumps, where a kernel's tile or a cache is full; these show only where they were measured.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from dflash_core.events import StepEvent

MIN_STEPS = 5
"""The least number of steps with the same count of nodes whose median counts as measured."""

Source = Literal["measured", "interpolated", "extrapolated"]


@dataclass(frozen=True, slots=True)
class Cost:
    """Milliseconds per step, and how they were obtained."""

    ms: float
    source: Source


class StepTimes:
    """Times of a session's steps by the nodes that they verified, without the root. Plain decoding is left out."""

    def __init__(self, steps: Iterable[StepEvent] = ()) -> None:
        self._times: dict[int, list[float]] = {}
        for step in steps:
            self.add(step)

    def add(self, step: StepEvent) -> None:
        """Count one step; it drafts whatever its tree then holds, so only steps without a drafter are others."""
        if step.mode != "plain":
            self._times.setdefault(len(step.tree.tokens) - 1, []).append(step.stages.total)

    @property
    def measured(self) -> dict[int, float]:
        """Median milliseconds by nodes, where there are enough steps; ascending."""
        enough = ((nodes, times) for nodes, times in sorted(self._times.items()) if len(times) >= MIN_STEPS)
        return {nodes: statistics.median(times) for nodes, times in enough}

    def at(self, nodes: float) -> Cost | None:
        """The cost of a step of `nodes`; None where the measurements do not suffice, such as a single count."""
        measured = self.measured
        if nodes in measured:
            return Cost(measured[int(nodes)], "measured")
        if len(measured) < 2:
            return None
        below = max((n for n in measured if n < nodes), default=None)
        above = min((n for n in measured if n > nodes), default=None)
        if below is not None and above is not None:
            share = (nodes - below) / (above - below)
            return Cost(measured[below] + share * (measured[above] - measured[below]), "interpolated")
        least, most = min(measured), max(measured)
        near = nodes * most >= least * least and nodes * least <= most * most
        slope, start = statistics.linear_regression(list(measured), list(measured.values()))
        ms = start + slope * nodes
        return Cost(ms, "extrapolated") if near and slope > 0 and ms > 0 and math.isfinite(ms) else None
