"""Constraints without a model: what becomes of a tree, and where the answer begins."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_core.constraints.base import Mask, masked
from dflash_core.constraints.drafts import within
from dflash_core.constraints.grammar import AfterThinking
from dflash_core.tree import Candidates, Tree, build
from support.masks import ids_of, mask_of

OPEN, CLOSE, VOCAB = 8, 9, 12


class Digits:
    """A constraint that allows the tokens of `texts` and then token 0, which ends them."""

    def __init__(self, *texts: Sequence[int]) -> None:
        self.texts = [[*text, 0] for text in texts]
        self.answer: list[int] = []

    def add(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            assert self.admits((), token)
            self.answer.append(token)

    def drop(self) -> None:
        self.answer.pop()

    def _next(self, path: Sequence[int]) -> set[int]:
        so_far = [*self.answer, *path]
        return {text[len(so_far)] for text in self.texts if text[: len(so_far)] == so_far and len(text) > len(so_far)}

    def allowed(self, path: Sequence[int]) -> Mask:
        return mask_of(self._next(path), VOCAB)

    def admits(self, path: Sequence[int], token: int) -> bool:
        return token in self._next(path)

    def forced(self) -> Sequence[int]:
        path: list[int] = []
        while len(following := self._next(path)) == 1 and following != {0}:
            path += following
        return path


def tree_of(*paths: Sequence[int], root: int = 1) -> Tree:
    """The tree of these paths below the root, all with the log-probability -1 a node."""
    nodes: dict[tuple[int, ...], int] = {(): 0}
    tokens, parents, depths = [root], [-1], [0]
    for path in paths:
        for end in range(1, len(path) + 1):
            if tuple(path[:end]) not in nodes:
                nodes[tuple(path[:end])] = len(tokens)
                tokens.append(path[end - 1])
                parents.append(nodes[tuple(path[: end - 1])])
                depths.append(end)
    ones = tuple(-float(bool(depth)) for depth in depths)
    return Tree(tuple(tokens), tuple(parents), tuple(depths), ones, tuple(-float(depth) for depth in depths))


def paths_of(tree: Tree) -> set[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [()]
    for token, parent in zip(tree.tokens[1:], tree.parents[1:]):
        found.append((*found[parent], token))
    return set(found[1:])


def test_forbidden_nodes_go_with_what_is_below_them() -> None:
    constraint = Digits([1, 2, 3], [1, 4, 5, 6])
    constraint.add([1])
    tree = within(tree_of([2, 3, 7], [4, 5], [7, 2]), constraint, 10, 10, chain=False)
    assert paths_of(tree) == {(2,), (2, 3), (4,), (4, 5)}
    assert all(parent < node for node, parent in enumerate(tree.parents))
    assert tree.path_log_probs == tuple(-float(depth) for depth in tree.depths)


def test_forced_tokens_come_first_and_within_the_budget() -> None:
    constraint = Digits([1, 2, 3, 4, 5])
    constraint.add([1])
    for budget, forced, expected in ((10, 10, 4), (0, 3, 3), (10, 1, 2)):
        tree = within(tree_of([2, 3], [6]), constraint, budget, forced, chain=False)
        assert tree.tokens == (1, 2, 3, 4, 5)[: expected + 1]
        assert tree.path_log_probs[forced if forced < expected else -1] == 0
    assert len(within(tree_of(), constraint, 10, 0, chain=False)) == 1, "an answer that ends with the next token"


def test_a_chain_stays_one_path() -> None:
    constraint = Digits([1, 2, 3, 4], [1, 2, 3, 5, 6])
    constraint.add([1])
    assert paths_of(within(tree_of([2, 3, 5, 6]), constraint, 10, 10, chain=True)) == {
        (2,),
        (2, 3),
        (2, 3, 5),
        (2, 3, 5, 6),
    }
    assert paths_of(within(tree_of([4, 3]), constraint, 10, 10, chain=True)) == {(2,), (2, 3)}


TEXTS = st.lists(st.lists(st.integers(1, 5), min_size=2, max_size=6), min_size=1, max_size=4)


@settings(deadline=None, max_examples=150)
@given(TEXTS, st.data())
def test_a_constrained_tree_is_the_admitted_part_of_one(texts: list[list[int]], data: st.DataObject) -> None:
    texts = [[1, *text] for text in texts]
    constraint = Digits(*texts)
    constraint.add([1])
    depths, width, budget = (data.draw(st.integers(1, high)) for high in (5, 4, 20))
    tokens = [data.draw(st.permutations(range(6)))[:width] for _ in range(depths)]
    scores = [sorted((data.draw(st.floats(-5, 0)) for _ in range(width)), reverse=True) for _ in range(depths)]
    drafts = Candidates(np.array(tokens, np.int64), np.array(scores))
    tree = build(1, drafts, 60, stops=(0,))
    for chain in (False, True):
        found = within(tree, constraint, budget, min(budget, depths), chain=chain)
        assert len(found) <= budget + 1
        paths = paths_of(found)
        assert len(paths) == len(found) - 1, "no path twice"
        for path in paths:
            assert all(constraint.admits(path[:end], path[end]) for end in range(len(path)))
        if chain:
            assert len(paths) == max(found.depths)
        elif budget == 20:
            forced = tuple(constraint.forced()[:depths])
            admitted = {
                path for path in paths_of(tree)
                if all(constraint.admits(path[:end], path[end]) for end in range(len(path)))
            }  # fmt: skip
            expected = admitted | {forced[:end] for end in range(1, len(forced) + 1)}
            assert paths == expected or len(expected) > budget


def test_masked() -> None:
    row = np.arange(4, dtype=np.float32)
    assert masked(row, None) is row
    assert masked(row, mask_of({0, 2, 4, 5}, 6)).tolist() == [0, -math.inf, 2, -math.inf]
    assert row.tolist() == [0, 1, 2, 3], "the row itself stays, for whoever looks at it later"


@pytest.mark.parametrize("opened", [True, False])
def test_a_constraint_begins_after_the_reasoning(opened: bool) -> None:
    inner = Digits([1, 2])
    constraint = AfterThinking(inner, (OPEN, CLOSE), opened=opened)
    if not opened:
        mask = constraint.allowed(())
        assert mask is not None
        assert ids_of(mask).tolist() == [1, OPEN]
        assert constraint.admits((), OPEN)
        assert not constraint.admits((), 7)
        assert constraint.admits((OPEN,), 7)
        assert constraint.admits((OPEN, CLOSE), 1)
        assert not constraint.admits((OPEN, CLOSE), 7)
        assert constraint.forced() == (), "it may think first"
        constraint.add([OPEN])
    assert constraint.allowed((7, 7)) is None
    assert constraint.forced() == ()
    assert constraint.admits((7,), CLOSE)
    mask = constraint.allowed((7, CLOSE, 1))
    assert mask is not None
    assert ids_of(mask).tolist() == [2]
    constraint.add([7, CLOSE])
    assert constraint.forced() == [1, 2]
    constraint.add([1])
    assert inner.answer == [1]
    assert constraint.forced() == [2]
    assert constraint.admits((), 2)
    assert not constraint.admits((), CLOSE)


def test_a_step_that_ends_the_reasoning_counts_for_both() -> None:
    inner = Digits([1, 2, CLOSE, 3])
    constraint = AfterThinking(inner, (OPEN, CLOSE), opened=True)
    constraint.add([5, CLOSE, 1, 2, CLOSE])
    assert inner.answer == [1, 2, CLOSE], "a later tag is the answer's"
    constraint.drop()
    assert inner.answer == [1, 2]


def test_a_token_that_is_taken_back() -> None:
    inner = Digits([1, 2])
    constraint = AfterThinking(inner, (OPEN, CLOSE), opened=True)
    constraint.add([5])
    constraint.drop()
    constraint.add([CLOSE, 1])
    constraint.drop()
    constraint.add([1, 2])
    assert inner.answer == [1, 2]
    direct = AfterThinking(Digits([1]), (OPEN, CLOSE), opened=False)
    direct.add([1])
    direct.drop()
    assert direct.admits((), OPEN)
