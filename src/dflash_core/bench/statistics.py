"""Statistics of noisy figures: medians with their spread, and whether a difference is more than noise.

Two settings are compared in pairs, so that a prompt's own speed cancels out:

    d_i = b_i / a_i - 1        one relative difference per pair

The difference of the settings is the median of the d_i, here and on every screen. Its interval is that of the sign test
(Dixon and Mood, 1946): the k-th smallest to the k-th largest d_i, with the largest k for which

    2 * P(X <= k - 1) < 0.05,  X ~ Binomial(n, 1/2)

The interval assumes nothing about the distribution. A difference counts if the interval leaves out 0. Fewer than six
pairs have no interval.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

LEVEL = 0.05
MIN_PAIRS = 6  # that have an interval: 2 / 2**6 < LEVEL < 2 / 2**5

Verdict = Literal["higher", "lower", "noise", "too few runs"]


@dataclass(frozen=True, slots=True)
class Summary:
    """How `n` values are distributed: median, quartiles, extremes. In the values' own unit."""

    n: int
    median: float
    low: float
    high: float
    least: float
    most: float


def summary(values: Sequence[float]) -> Summary:
    """Summarise at least one value; quartiles are interpolated linearly. Raises ValueError for none."""
    if not values:
        raise ValueError("nothing to summarise: no values, expected at least one")
    low, median, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else (values[0],) * 3
    return Summary(len(values), median, low, high, min(values), max(values))


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The interval of the median of `values` with at least 1 - LEVEL confidence; None for too few."""
    n, tail, k = len(values), 0.0, 0
    while (tail := tail + 2 * math.comb(n, k) / 2**n) < LEVEL:
        k += 1
    ordered = sorted(values)
    return (ordered[k - 1], ordered[n - k]) if k else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """How `b` differs from `a` over `n` pairs; `difference`, `low` and `high` are shares of `a` (0.1: 10 % more), the
    last two None for fewer than MIN_PAIRS; `wins` and `losses`: the pairs where b is more, and less."""

    n: int
    difference: float
    low: float | None
    high: float | None
    wins: int
    losses: int
    verdict: Verdict

    @property
    def matters(self) -> bool:
        """Whether the difference is more than noise."""
        return self.verdict in ("higher", "lower")


def compare(a: Sequence[float], b: Sequence[float]) -> Comparison:
    """Compare `b` with `a`, pair by pair; all values above 0. Raises ValueError for unpaired or no values."""
    if len(a) != len(b) or not a or min(a) <= 0:
        raise ValueError(f"{len(a)} and {len(b)} values, expected as many of one as of the other, each above 0")
    differences = [y / x - 1 for x, y in zip(a, b)]
    found = interval(differences)
    low, high = found if found is not None else (None, None)
    verdict: Verdict = "too few runs"
    if low is not None and high is not None:
        verdict = "higher" if low > 0 else "lower" if high < 0 else "noise"
    wins, losses = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    return Comparison(len(differences), statistics.median(differences), low, high, wins, losses, verdict)
