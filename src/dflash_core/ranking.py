"""The k largest values of a row, in one fixed order, for the tree and the sampler alike."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_GROUP = 16


def largest(values: npt.NDArray[np.floating], k: int) -> npt.NDArray[np.intp]:
    """Indices of the k largest entries of `values` (1-D), largest first, ties to the lower index."""
    if k < len(values):
        # argpartition breaks ties at the border arbitrarily; take every entry that ties with the k-th.
        border = _kth(values, k)
        candidates = np.flatnonzero(values >= border)
        if len(candidates) > 2 * k:  # sorting them all would take long where a whole row is equal
            above = np.flatnonzero(values > border)
            candidates = np.concatenate((above, np.flatnonzero(values == border)[: k - len(above)]))
    else:
        candidates = np.arange(len(values))
    order = np.argsort(-values[candidates], kind="stable")
    return candidates[order[:k]]


def _kth(values: npt.NDArray[np.floating], k: int) -> np.floating:
    """The k-th largest of at least k values."""
    groups = len(values) // _GROUP
    if groups > 4 * k:
        # The k-th largest of the groups' own maxima is not above the k-th of all, so few values are left to partition.
        maxima = values[: groups * _GROUP].reshape(_GROUP, groups).max(axis=0)
        least: np.floating = np.partition(maxima, groups - k)[groups - k]
        values = values[values > least]
        if len(values) < k:
            return least
    found: np.floating = np.partition(values, len(values) - k)[len(values) - k]
    return found
