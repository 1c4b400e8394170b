"""Trees of candidates that are scored by the token above them: the invariants of all trees, and their own order."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dflash_core.pair_scores import Factors, PairScores
from dflash_core.policy.best_first import build as build_valued
from dflash_core.policy.best_first import trials
from dflash_core.policy.values import Learned, Stated
from dflash_core.tree import Candidates, build, candidates, walk

ROOT = 7


def drafts(seed: int = 0, depths: int = 5, width: int = 16, ranks: int = 8, said: float | None = None) -> Candidates:
    """Random candidates of a vocabulary of 40, whose pairs count as much as their own scores."""
    random = np.random.default_rng(seed)
    plain = candidates(random.standard_normal((depths, 40)).astype(np.float32), width)
    table = random.standard_normal((40, 6))
    factors = Factors(
        random.standard_normal((depths, 6)), table[plain.tokens] * 0.7, lambda token: table[token],
        None if said is None else lambda depth, token: said,
    )  # fmt: skip
    return Candidates(plain.tokens, plain.log_probs, PairScores(plain.log_probs, factors, 1.0, 0), ranks)


def every_path(given: Candidates, most: int) -> list[tuple[float, tuple[int, ...]]]:
    """All paths down to some depth with their log-probability, by asking for every one of them."""
    found: list[tuple[float, tuple[int, ...]]] = []
    level: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for depth in range(most):
        below = []
        for log_prob, path in level:
            tokens, said = given.below(depth, path[-1] if path else ROOT)
            below += [(log_prob + more, (*path, token)) for token, more in zip(tokens, said)]
        found += below
        level = below
    return sorted(found, key=lambda one: (-one[0], one[1]))


def paths_of(tree: object) -> list[tuple[int, ...]]:
    tokens, parents = tree.tokens, tree.parents  # type: ignore[attr-defined]
    paths: list[tuple[int, ...]] = [()]
    for token, parent in zip(tokens[1:], parents[1:]):
        paths.append((*paths[parent], token))
    return paths[1:]


@pytest.mark.parametrize("seed", range(4))
def test_the_tree_is_the_likeliest_paths(seed: int) -> None:
    given = drafts(seed, depths=3, ranks=16)
    expected = [path for _, path in every_path(given, 3)[:40]]
    assert set(paths_of(build(ROOT, given, 40))) == set(expected)


@pytest.mark.parametrize("chain_seed", [False, True])
@pytest.mark.parametrize("p_min", [0.0, 0.1])
def test_promises(chain_seed: bool, p_min: float) -> None:
    """Nested, no token twice under a parent, parents first, none below a stop, siblings no more than the width."""
    for seed in range(6):
        given = drafts(seed, ranks=1 + seed)
        stops = {int(given.tokens[1, 0])}
        largest = build(ROOT, given, 256, p_min=p_min, chain_seed=chain_seed, stops=stops)
        for budget in (1, 2, 7, 22, 63):
            tree = build(ROOT, given, budget, p_min=p_min, chain_seed=chain_seed, stops=stops)
            assert len(tree) <= budget + 1
            if not chain_seed:
                assert tree.tokens == largest.tokens[: len(tree)]
            pairs = list(zip(tree.parents, tree.tokens))
            assert len(set(pairs)) == len(pairs)
            assert all(parent < node for node, parent in enumerate(tree.parents))
            assert not any(tree.tokens[parent] in stops for parent in tree.parents[1:] if parent)
            assert max(tree.parents.count(node) for node in range(len(tree))) <= 1 + seed
            assert all(math.exp(p) >= p_min for p in tree.log_probs[2:])


def test_marginals_are_as_before() -> None:
    """Candidates without scores by the token above keep the order of their depth below every node."""
    plain = candidates(np.random.default_rng(3).standard_normal((4, 40)).astype(np.float32), 8)
    for depth in range(4):
        tokens, said = plain.below(depth, 5)
        assert tokens == plain.tokens[depth].tolist()
        assert said == plain.log_probs[depth].tolist()


def test_a_chain_follows_its_own_tokens() -> None:
    given = drafts(1).cut(5, 1)
    tree = build(ROOT, given, 5)
    token = ROOT
    for depth in range(5):
        token = given.below(depth, token)[0][0]
        assert tree.tokens[depth + 1] == token
    assert given.cut(3).tokens.shape == (3, 16)


def test_candidates_share_what_the_marginal_gives_to_all() -> None:
    given = drafts(2)
    assert given.given is not None
    for depth, parent in ((0, ROOT), (3, 11)):
        total = np.exp(given.given(depth, parent)).sum()
        assert total == pytest.approx(np.exp(given.log_probs[depth]).sum())


@pytest.mark.parametrize("said", [0.02, 0.4, 0.97])
def test_a_confidence_is_the_best_candidates_chance(said: float) -> None:
    given, plain = drafts(2, said=said), drafts(2)
    tokens, log_probs = given.below(1, ROOT)
    assert tokens[0] == plain.below(1, ROOT)[0][0]
    assert math.exp(log_probs[0]) == pytest.approx(said)
    assert sum(map(math.exp, log_probs)) <= 1 + 1e-9
    assert all(math.exp(one) <= said + 1e-12 for one in log_probs)


def test_valued_trees_ask_by_parent_too() -> None:
    """With the drafter's probabilities unchanged, the nodes are those of the best-first tree, in its order; and every
    accepted path gives trials to learn from."""
    for seed in range(4):
        given = drafts(seed, ranks=3)
        stated = Stated(given.tokens, given.log_probs, given, ROOT)
        learned = Learned()
        tree = build_valued(stated, learned, None, ROOT, (), 30)
        fixed = build(ROOT, given, 30)
        assert tree.tokens[1:12] == list(fixed.tokens[1:12])
        assert [tree.tokens[node] for node in range(len(tree)) if tree.off[node] == 0][1:] == [
            fixed.tokens[node] for node in range(1, len(fixed)) if _on_spine(fixed, given, node)
        ][: sum(off == 0 for off in tree.off) - 1]
        path = [0, tree.parents.index(0, 1)]
        said = [tree.tokens[path[1]], 39]
        classes, features, outcomes = trials(tree, stated, path, said, ())
        assert sum(outcomes) >= 1
        learned.learn(classes, features, outcomes)
        assert learned.trials.sum() == len(classes)


def _on_spine(tree: object, given: Candidates, node: int) -> bool:
    tokens, parents, depths = tree.tokens, tree.parents, tree.depths  # type: ignore[attr-defined]
    while node:
        parent = parents[node]
        if given.below(depths[parent], tokens[parent])[0][0] != tokens[node]:
            return False
        node = parent
    return True


def test_a_walk_needs_nothing_else() -> None:
    given = drafts(5)
    tree = build(ROOT, given, 22)
    best = walk(tree, lambda node, path: next((t for t, p in zip(tree.tokens, tree.parents) if p == node), 0))
    assert len(best.path) >= 2
