"""The k largest values are those of a whole stable sort, however long the row is and whatever ties."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from dflash_core.tree import largest

ROWS: dict[str, Callable[[np.random.Generator, int], npt.NDArray[np.float64]]] = {
    "different": lambda rng, n: rng.standard_normal(n),
    "ties": lambda rng, n: np.round(rng.standard_normal(n), 1),
    "few values": lambda rng, n: np.round(rng.standard_normal(n)),
    "one value": lambda rng, n: np.zeros(n),
    "infinite": lambda rng, n: rng.choice([-np.inf, 0.0, 1.0, np.inf], n),
}


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("length", [1, 7, 300, 5000])
def test_it_is_the_beginning_of_a_sorted_row(kind: str, length: int) -> None:
    rng = np.random.default_rng(length)
    for k in (1, 2, 8, 40, length):
        row = ROWS[kind](rng, length).astype(np.float32)
        assert largest(row, k).tolist() == np.argsort(-row, kind="stable")[:k].tolist()
