"""gdn_order: every node of a pass is visited once, from its parent's state, within the levels that there are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from dflash_core.backends.cuda.layers.delta_shapes import (
    ORDER_INTS,
    TURNS_AHEAD,
    DeltaShape,
    first_pass_levels,
    later_pass_levels,
)
from dflash_core.backends.cuda.state import MAX_NODES, PASS_ROWS
from support.engines import Engine
from support.grids import full
from support.steps import random_parents, tree_state

# Turn of kernels/gdn_order.cuh.
NONE, LEAF, INNER, REPLAY = 15, 0, 1, 2
AGAIN, LAST = 1 << 18, 1 << 19


def order(engine: Engine, parents: Sequence[int], node0: int, rows: int, stop: int = 0) -> np.ndarray:
    """A word for each visit, then zeros that are read ahead; poison after them."""
    out = engine.poisoned(ORDER_INTS, np.uint32)
    arguments = [engine.array(tree_state(parents, 1000, stop=stop)), np.int32(node0), np.int32(rows), out]
    engine.kernel("gdn_order.cu", "gdn_order", DeltaShape(1, 1).defines)(1, MAX_NODES, arguments)
    return out.numpy()


def walk(found: np.ndarray, parents: Sequence[int], node0: int, rows: int) -> int:
    """Follow the visits as gdn_recurrence does, with node numbers in place of states; returns the number of levels
    used."""
    count = 1 + int(np.flatnonzero(found & LAST)[0])
    assert not found[count : count + TURNS_AHEAD].any()
    assert (found[count + TURNS_AHEAD :] == 0x7F7F7F7F).all()
    live = range(node0, min(node0 + rows, len(parents)))
    wanted = set(live)
    for node in live:
        while parents[node] >= 0:
            node = parents[node]
            wanted.add(node)
    words = [int(word) for word in found[:count]]
    visits = [(word & 255, word >> 8 & 15, word >> 12 & 15, word >> 16 & 3) for word in words]
    assert sorted(visit[0] for visit in visits) == sorted(wanted)
    state, levels, most = -1, dict[int, int](), 0
    for word, (node, load, keep, kind) in zip(words, visits):
        if load != NONE:
            state = levels[load]
        assert state == parents[node], f"node {node}"
        assert (kind == REPLAY) == (node < node0)
        assert kind == REPLAY or word >> 24 == node - node0
        assert kind != LEAF or not any(parents[other] == node for other in wanted)
        if kind != LEAF:
            state = node
        if keep != NONE:
            levels[keep], most = state, max(most, keep + 1)
    for word, (_, _, keep, kind), (_, load, _, then) in zip(words, visits, visits[1:]):
        assert bool(word & AGAIN) == (kind == then != REPLAY and keep == load == NONE)
    assert not words[-1] & AGAIN
    return most


@pytest.mark.parametrize("n", [1, 2, *map(full, (3, 8)), 9, full(16), 24, *map(full, (33, 40, 48)), 63, 64])
def test_a_pass_visits_each_node_behind_its_parent(engine: Engine, rng: np.random.Generator, n: int) -> None:
    for _ in range(20):
        parents = random_parents(n, rng)
        found = order(engine, parents, 0, n + int(rng.integers(8)))
        assert walk(found, parents, 0, n) <= first_pass_levels(n)


def test_as_many_levels_as_there_can_be(engine: Engine) -> None:
    """Two equal subtrees below every node."""

    def grow(parent: int, size: int, parents: list[int]) -> list[int]:
        parents.append(parent)
        node, rest = len(parents) - 1, size - 1
        for part in (rest // 2, rest - rest // 2) if rest > 1 else (rest,):
            if part:
                grow(node, part, parents)
        return parents

    for n in (5, 7, 8, 11, 16, 23, 24, 40, 47, 64):
        parents = grow(-1, n, [])
        assert walk(order(engine, parents, 0, n), parents, 0, n) == first_pass_levels(n)
    spine = list(range(-1, 6))
    assert walk(order(engine, spine, 0, 7), spine, 0, 7) == 0, "a chain keeps nothing"


@pytest.mark.parametrize("n", [65, full(100), full(128), full(200), 256])
def test_later_passes_run_ancestors_again(engine: Engine, rng: np.random.Generator, n: int) -> None:
    for _ in range(5):
        reach = int(rng.integers(1, n))
        parents = [-1] + [int(rng.integers(max(0, node - reach), node)) for node in range(1, n)]
        for node0 in range(0, n, PASS_ROWS):
            most = walk(order(engine, parents, node0, PASS_ROWS), parents, node0, PASS_ROWS)
            assert most <= later_pass_levels(PASS_ROWS)
    # 64 leaves below a binary tree of 63 and a node that no leaf is below: every level of later passes.
    parents = [-1, *((node - 1) // 2 for node in range(1, 63)), 0, *(31 + leaf // 2 for leaf in range(64))]
    assert walk(order(engine, parents, 64, 64), parents, 64, 64) == later_pass_levels(64) - 1


def test_nothing_is_ordered_of_a_stopped_turn_or_past_the_tree(engine: Engine) -> None:
    assert (order(engine, [-1, 0, 1], 0, 8, stop=1) == 0x7F7F7F7F).all()
    assert (order(engine, [-1, 0, 1], 64, 8) == 0x7F7F7F7F).all()
