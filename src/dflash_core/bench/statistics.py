"""Statistics of noisy figures: medians with their spread, and whether a difference is more than noise.

Two settings are compared in pairs, so that a prompt's own speed cancels out:

    d_i = (b_i - a_i) / a_i        one relative difference per pair

A difference counts only if both tests of the d_i agree:

- the sign test (Dixon and Mood, 1946): were as many pairs on one side as a fair coin would hardly give,
  p = 2 * P(X <= min(wins, losses)), X ~ Binomial(wins + losses, 1/2), ties left out, p < 0.05?
- the bootstrap (Efron, 1979): does the 95 % percentile interval of the median of the d_i leave out 0?

The sign test assumes nothing about the distribution and cannot succeed with fewer than six pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

LEVEL = 0.05
FEWEST_PAIRS = 6
"""The fewest pairs with which the sign test can reach LEVEL: 2 / 2**6 < 0.05 < 2 / 2**5."""
RESAMPLES = 2000

Verdict = Literal["higher", "lower", "noise", "too few pairs"]


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
    least, low, median, high, most = (float(q) for q in np.quantile(values, (0, 0.25, 0.5, 0.75, 1)))
    return Summary(len(values), median, low, high, least, most)


def sign_test(differences: Sequence[float]) -> float:
    """Two-sided p of the signs of `differences` under a fair coin; zeros are left out. 1 where nothing is left."""
    wins, losses = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    tail = sum(math.comb(wins + losses, k) for k in range(min(wins, losses) + 1))
    return min(1.0, 2 * tail / (1 << (wins + losses)))


def bootstrap_median(values: Sequence[float]) -> tuple[float, float]:
    """The percentile interval that holds the median of `values` with probability 1 - LEVEL. Deterministic."""
    array = np.asarray(values, np.float64)
    drawn = np.random.default_rng(0).integers(0, len(array), (RESAMPLES, len(array)))
    low, high = np.quantile(np.median(array[drawn], axis=1), (LEVEL / 2, 1 - LEVEL / 2))
    return float(low), float(high)


@dataclass(frozen=True, slots=True)
class Comparison:
    """How `b` differs from `a` over `n` pairs; `difference`, `low` and `high` are shares of `a` (0.1: 10 % more)."""

    n: int
    difference: float
    low: float
    high: float
    wins: int
    losses: int
    p: float
    verdict: Verdict

    @property
    def matters(self) -> bool:
        """Whether the difference is more than noise."""
        return self.verdict in ("higher", "lower")


def compare(a: Sequence[float], b: Sequence[float]) -> Comparison:
    """Compare `b` with `a`, pair by pair; all values above 0. Raises ValueError for unpaired or no values."""
    if len(a) != len(b) or not a or min(a) <= 0:
        raise ValueError(f"{len(a)} and {len(b)} values, expected as many of one as of the other, each above 0")
    differences = [(y - x) / x for x, y in zip(a, b)]
    median = summary(differences).median
    low, high = bootstrap_median(differences)
    p = sign_test(differences)
    verdict: Verdict = "noise"
    if len(differences) < FEWEST_PAIRS and any(differences):
        verdict = "too few pairs"
    elif p < LEVEL and (low > 0 or high < 0):
        verdict = "higher" if median > 0 else "lower"
    wins, losses = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    return Comparison(len(differences), median, low, high, wins, losses, p, verdict)
