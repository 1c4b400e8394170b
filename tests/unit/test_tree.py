"""The tree's invariants, on random drafts: the rules of docs/tree.md."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_core.tree import Candidates, Tree, ancestors, build, candidates, conv_taps, largest, walk

DEPTHS, VOCAB = 15, 40


def drafts(seed: int, width: int = 8, scale: float = 3.0) -> Candidates:
    rng = np.random.default_rng(seed)
    return candidates((rng.standard_normal((DEPTHS, VOCAB)) * scale).astype(np.float32), width)


SHAPES = {
    "seed": st.integers(0, 10_000),
    "budget": st.integers(1, 256),
    "width": st.integers(1, 12),
    "p_min": st.sampled_from([0.0, 0.01, 0.05, 0.3, 0.9]),
    "chain_seed": st.booleans(),
}


@given(**SHAPES)
@settings(max_examples=200, deadline=None)
def test_invariants(seed: int, budget: int, width: int, p_min: float, chain_seed: bool) -> None:
    found = drafts(seed, width)
    tree = build(7, found, budget, p_min=p_min, chain_seed=chain_seed)
    assert len(tree) <= budget + 1
    assert (tree.tokens[0], tree.parents[0], tree.depths[0]) == (7, -1, 0)
    seen = set()
    for node in range(1, len(tree)):
        parent = tree.parents[node]
        assert 0 <= parent < node
        assert tree.depths[node] == tree.depths[parent] + 1 <= DEPTHS
        assert tree.path_log_probs[node] == tree.path_log_probs[parent] + tree.log_probs[node]
        rank = list(found.tokens[tree.depths[node] - 1]).index(tree.tokens[node])
        assert tree.log_probs[node] == found.log_probs[tree.depths[node] - 1, rank]
        assert (parent, tree.tokens[node]) not in seen
        seen.add((parent, tree.tokens[node]))
        exempt = tree.depths[node] == 1 and rank == 0
        assert exempt or math.exp(tree.log_probs[node]) >= p_min


@given(**SHAPES)
@settings(max_examples=100, deadline=None)
def test_trees_of_growing_budget_are_prefixes(
    seed: int, budget: int, width: int, p_min: float, chain_seed: bool
) -> None:
    found = drafts(seed, width)
    large = build(7, found, 256, p_min=p_min, chain_seed=chain_seed)
    small = build(7, found, budget, p_min=p_min, chain_seed=chain_seed)
    assert small.tokens == large.tokens[: len(small)]
    assert small.parents == large.parents[: len(small)]
    assert len(small) == min(budget + 1, len(large))


@given(seed=st.integers(0, 10_000), budget=st.integers(16, 128), p_min=st.sampled_from([0.0, 0.02, 0.2]))
@settings(max_examples=100, deadline=None)
def test_best_first_holds_the_best_nodes(seed: int, budget: int, p_min: float) -> None:
    """Without the chain seed the tree is exactly the `budget` likeliest paths: checked by brute force."""
    found = drafts(seed, 4)
    tree = build(7, found, budget, p_min=p_min, chain_seed=False)
    paths = [(0.0, (), 0)]
    everything = []
    for depth in range(6):  # deeper paths are sums of more terms; six levels of four hold all of the best here
        grown = []
        for total, path, _ in paths:
            for rank in range(4):
                log_prob = found.log_probs[depth, rank]
                if math.exp(log_prob) >= p_min or (depth == 0 and rank == 0):
                    grown.append((total + log_prob, (*path, rank), depth))
        everything += grown
        paths = grown
    best = sorted((total for total, _, _ in everything), reverse=True)
    pops = sorted(tree.path_log_probs[1:], reverse=True)
    shallow = [total for node, total in enumerate(tree.path_log_probs) if 0 < tree.depths[node] <= 6]
    assert list(tree.path_log_probs[1:]) == pops, "weights must not increase along the pops"
    count = len([depth for depth in tree.depths[1:] if depth <= 6])
    assert np.allclose(sorted(shallow, reverse=True), best[:count])


def test_small_budget_with_a_seed_is_the_chain() -> None:
    found = drafts(3)
    for budget in range(1, DEPTHS + 1):
        tree = build(7, found, budget, chain_seed=True)
        assert tree.parents == tuple(range(-1, budget))
        assert tree.tokens[1:] == tuple(found.tokens[:budget, 0])
    assert build(7, found, 16).parents[16] != 15, "node 16 has to be a sibling"


def test_a_candidate_at_p_min_stays() -> None:
    found = Candidates(np.array([[1, 2]] * 3), np.log(np.array([[0.5, 0.25]] * 3)))
    assert len(build(7, found, 50, p_min=float(np.exp(found.log_probs[0, 1])))) == 15
    assert len(build(7, found, 50, p_min=0.26)) == 4
    assert len(build(7, found, 50, p_min=0.51)) == 2, "the first spine node is exempt"


def test_no_depths_is_the_root_alone() -> None:
    empty = Candidates(np.zeros((0, 1), np.int64), np.zeros((0, 1)))
    assert build(7, empty, 22) == Tree((7,), (-1,), (0,), (0.0,), (0.0,))


def test_candidates_are_a_full_softmax_and_break_ties_downwards() -> None:
    logits = np.array([[0.0, 2.0, 2.0, 1.0, 2.0]], np.float32)
    found = candidates(logits, 3)
    assert found.tokens.tolist() == [[1, 2, 4]]
    expected = 2 - math.log(3 * math.exp(2) + math.exp(1) + 1)
    assert np.allclose(found.log_probs, expected)
    softer = candidates(logits, 5, temperature=2.0)
    assert np.allclose(np.exp(softer.log_probs).sum(), 1)
    assert largest(logits[0], 2).tolist() == [1, 2]


@given(seed=st.integers(0, 10_000), nodes=st.integers(1, 80), kernel=st.integers(2, 5))
@settings(max_examples=100, deadline=None)
def test_masks_and_taps_follow_the_parents(seed: int, nodes: int, kernel: int) -> None:
    rng = np.random.default_rng(seed)
    parents = [-1, *(int(rng.integers(0, node)) for node in range(1, nodes))]
    mask, taps = ancestors(parents), conv_taps(parents, kernel)
    for node in range(nodes):
        line = []
        at = node
        while at >= 0:
            line.append(at)
            at = parents[at]
        assert sorted(line) == np.flatnonzero(mask[node]).tolist()
        state = [kernel - 2 - index for index in range(kernel - 1)]  # newest column first
        expected = [*(entry + kernel - 1 for entry in line), *state][:kernel]
        assert taps[node].tolist() == expected[::-1]


@given(seed=st.integers(0, 10_000), budget=st.integers(1, 60))
@settings(max_examples=100, deadline=None)
def test_walk_takes_the_path_of_the_draws(seed: int, budget: int) -> None:
    tree = build(7, drafts(seed), budget)
    rng = np.random.default_rng(seed)
    goal = int(rng.integers(0, len(tree)))
    line = [goal]
    while tree.parents[line[-1]] >= 0:
        line.append(tree.parents[line[-1]])
    line.reverse()
    asked = []

    def draw(node: int, path: list[int]) -> int:
        asked.append((node, tuple(path)))
        following = line[line.index(node) + 1 :]
        return tree.tokens[following[0]] if following else VOCAB + 1

    result = walk(tree, draw)
    assert result.path == tuple(line)
    assert result.next_token == VOCAB + 1
    assert [node for node, _ in asked] == line
    assert all(path == tuple(tree.tokens[n] for n in line[1 : at + 1]) for at, (_, path) in enumerate(asked))
