"""StepState as kernel tests need it: a tree after some committed positions, everything else poison."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dflash_core.backends.cuda.state import MAX_NODES, STEP_STATE
from dflash_core.tree import ancestors


def random_parents(n: int, rng: np.random.Generator) -> list[int]:
    """A tree of `n` nodes, parents before children: anything from a chain to a star."""
    reach = int(rng.integers(1, n + 1))  # how far back a parent may lie
    return [-1] + [int(rng.integers(max(0, node - reach), node)) for node in range(1, n)]


def mask_words(parents: Sequence[int]) -> npt.NDArray[np.uint64]:
    """(nodes, 4) ancestor masks, a bit per node."""
    bits = np.zeros((len(parents), MAX_NODES), np.uint8)
    bits[:, : len(parents)] = ancestors(parents)
    return np.packbits(bits, axis=1, bitorder="little").view(np.uint64)


def tree_state(parents: Sequence[int], length: int, **fields: object) -> npt.NDArray[np.void]:
    """(1,) state of a tree after `length` committed positions; fields that are not given are poison."""
    state = np.zeros(1, STEP_STATE)
    state.view(np.uint8)[...] = 0x7F
    n = len(parents)
    state["n"], state["length"], state["stop"] = n, length, 0
    state["parent"][0, :n] = parents
    state["mask"][0, :n] = mask_words(parents)
    state["depth"][0, :n] = ancestors(parents).sum(axis=1) - 1
    for name, value in fields.items():
        state[name] = value
    return state
