"""The k largest values of a row, in one fixed order, for the tree and the sampler alike."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def largest(values: npt.NDArray[np.floating], k: int) -> npt.NDArray[np.intp]:
    """Indices of the k largest entries of `values` (1-D), largest first, ties to the lower index."""
    if k < len(values):
        # argpartition breaks ties at the border arbitrarily; take every entry that ties with the k-th.
        border = np.partition(values, len(values) - k)[len(values) - k]
        candidates = np.flatnonzero(values >= border)
    else:
        candidates = np.arange(len(values))
    order = np.argsort(-values[candidates], kind="stable")
    return candidates[order[:k]]
