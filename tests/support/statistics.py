"""Distributions computed directly, without optimisation, and Pearson's test."""

from __future__ import annotations

import numpy as np

from dflash_core.knobs import Knobs


def softmax(row: np.ndarray) -> np.ndarray:
    weights = np.exp(row - row.max())
    return weights / weights.sum()


def truncated(row: np.ndarray, knobs: Knobs) -> np.ndarray:
    """The distribution that the sampler chain must draw from, computed directly."""
    allowed = np.ones(len(row), bool)
    if knobs.top_k:
        order = sorted(range(len(row)), key=lambda token: (-row[token], token))
        allowed[order[knobs.top_k :]] = False
    scaled = np.where(allowed, row / knobs.temperature, -np.inf)
    probs = softmax(scaled)
    total = 0.0
    for token in sorted(range(len(row)), key=lambda token: (-probs[token], token)):
        if total >= knobs.top_p:
            allowed[token] = False
        total += probs[token]
    probs = np.where(allowed, probs, 0)
    probs[probs < knobs.min_p * probs.max()] = 0
    return probs / probs.sum()


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    """Pearson's statistic over the cells that can occur; a count in any other cell makes it infinite."""
    possible = expected > 0
    if counts[~possible].any():
        return float("inf")
    wanted = expected[possible] / expected[possible].sum() * counts.sum()
    return float(((counts[possible] - wanted) ** 2 / wanted).sum())


def limit(freedom: int) -> float:
    """Four standard deviations above the mean of a chi-square of that many degrees."""
    return freedom + 4 * (2 * freedom) ** 0.5
