"""Scores of a drafter's candidates given the parent token: low-rank products of factors from the drafter's head.

A selector multiplies three factors: the parent token, the position's hidden state, the candidate. A Markov head has
two, and its confidence head may give the probability of the best candidate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dflash_core.errors import not_finite

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Factors:
    """What a head multiplies. positions: (depths, rank); candidates: (depths, candidates, rank); above(token): (rank,).

    accepted(depth, token): the probability that the best candidate after `token` is right, if the head gives it.
    """

    positions: Array
    candidates: Array
    above: Callable[[int], Array]
    accepted: Callable[[int, int], float | None] | None = None


@dataclass(frozen=True, slots=True)
class PairScores:
    """A `tree.Given`. `marginal` (depths, candidates): log-probabilities at the tree temperature. `position`:
    how many tokens are before the root, for messages. Raises NumericsError where the best score is NaN."""

    marginal: Array
    factors: Factors
    temperature: float
    position: int
    noise: Array | None = None
    """(depths, candidates) is added to scores: what is known of the draws (drafters/draw_noise.py)."""
    _known: dict[tuple[int, int], Array] = field(default_factory=dict)

    def __call__(self, depth: int, parent: int) -> Array:
        if (depth, parent) not in self._known:
            self._known[depth, parent] = self._scored(depth, parent)
        return self._known[depth, parent]

    def _scored(self, depth: int, parent: int) -> Array:
        """The candidates share the total probability that the marginal gives them: the rest of the vocabulary has no
        scores."""
        f, marginal = self.factors, self.marginal[depth]
        pairs: Array = f.candidates[depth] @ (f.above(parent) * f.positions[depth])
        scores = marginal + pairs / self.temperature
        if self.noise is not None:
            scores = scores + self.noise[depth]
        accepted = f.accepted(depth, parent) if f.accepted else None
        if not np.isfinite(scores.max()) or (accepted is not None and math.isnan(accepted)):
            raise not_finite("drafter", self.position)
        log_probs: Array = scores - log_sum(scores) + log_sum(marginal)
        return log_probs if accepted is None else _trusted(log_probs, accepted)


def log_sum(values: Array) -> Array:
    """The log of the sum of `exp(values)` along the last axis, which stays with one entry."""
    most = values.max(axis=-1, keepdims=True)
    total: Array = most + np.log(np.exp(values - most).sum(axis=-1, keepdims=True))
    return total


def _trusted(log_probs: Array, best: float) -> Array:
    """Give the best candidate the probability `best`; the others share the rest in the same proportions."""
    p = np.exp(log_probs)
    top = int(p.argmax())
    rest = 1 - p[top]
    out = p * min((1 - best) / rest if rest > 0 else 0.0, best / p[top])
    out[top] = best
    with np.errstate(divide="ignore"):
        trusted: Array = np.log(out)
    return trusted
