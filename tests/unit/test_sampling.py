"""The sampler chain, and that speculation leaves the target's distribution alone."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest

from dflash_core.knobs import Knobs
from dflash_core.sampling import Sampler, gumbel, philox
from dflash_core.tree import Tree, build, candidates, walk

VOCAB = 12
DRAWS = 6000


def test_philox_known_answers() -> None:
    """Random123's published vectors for philox4x32-10 with zero counter words, first output word."""
    zero = np.array([0])
    assert philox(0, 0, zero)[0] == 0x6627E8D5
    assert len({int(philox(s, p, np.array([t]))[0]) for s in (1, 2**40) for p in (0, 9) for t in (0, 5)}) == 8


def test_gumbel_is_standard() -> None:
    noise = gumbel(3, 17, np.arange(200_000))
    assert abs(noise.mean() - 0.57722) < 0.01
    assert abs(noise.var() - np.pi**2 / 6) < 0.02


def softmax(row: np.ndarray) -> np.ndarray:
    weights = np.exp(row - row.max())
    return weights / weights.sum()


def naive(row: np.ndarray, knobs: Knobs) -> np.ndarray:
    """The distribution that the chain is meant to draw from, the slow way."""
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


@pytest.mark.parametrize(
    "knobs",
    [
        Knobs(temperature=0.8, top_k=5, top_p=0.9),
        Knobs(temperature=1.5, top_k=0, top_p=0.7, min_p=0.1),
        Knobs(temperature=0.3, top_k=3),
        Knobs(temperature=1.0),
    ],
)
def test_draws_follow_the_chain(knobs: Knobs) -> None:
    row = np.random.default_rng(5).standard_normal(VOCAB).astype(np.float32) * 2
    expected = naive(row.astype(np.float64), knobs)
    sampler = Sampler(knobs)
    counts = Counter(sampler.draw(row, position, ()) for position in range(DRAWS))
    assert set(counts) <= set(np.flatnonzero(expected))
    assert chi_square(np.array([counts[t] for t in range(VOCAB)]), expected) < limit(np.count_nonzero(expected) - 1)


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


def test_temperature_zero_is_argmax_and_penalties_count_there_too() -> None:
    row = np.array([1.0, 3.0, 2.5, -1.0], np.float32)
    assert Sampler(Knobs()).draw(row, 0, [1, 1]) == 1
    assert Sampler(Knobs(repetition_penalty=2)).draw(row, 0, [1]) == 2
    assert Sampler(Knobs(frequency_penalty=0.2)).draw(row, 0, [1, 1, 1]) == 2
    assert Sampler(Knobs(frequency_penalty=0.2)).draw(row, 0, [1, 1]) == 1
    assert Sampler(Knobs(presence_penalty=0.6)).draw(row, 0, [1]) == 2
    old = [1] + [0] * 256
    assert Sampler(Knobs(presence_penalty=0.6)).draw(row, 0, old) == 1, "only the last 256 tokens count"
    negative = np.array([-1.0, -1.5], np.float32)
    assert Sampler(Knobs(repetition_penalty=2)).draw(negative, 0, [0]) == 1


def test_a_draw_depends_on_seed_position_and_nothing_else() -> None:
    row = np.random.default_rng(1).standard_normal(VOCAB).astype(np.float32)
    sampler = Sampler(Knobs(temperature=1, seed=4))
    assert len({sampler.draw(row, 9, history) for history in ((), (1, 2), (3,))}) == 1
    assert len({sampler.draw(row, position, ()) for position in range(40)}) > 3
    assert len({Sampler(Knobs(temperature=1, seed=s)).draw(row, 9, ()) for s in range(40)}) > 3


class ToyModel:
    """A Markov chain over a dozen tokens, with a drafter that is right about half of the time."""

    def __init__(self) -> None:
        rng = np.random.default_rng(11)
        self.rows = (rng.standard_normal((VOCAB, VOCAB)) * 1.2).astype(np.float32)
        self.noise = (rng.standard_normal((3, VOCAB, VOCAB)) * 0.8).astype(np.float32)

    def tree(self, root: int) -> Tree:
        at, logits = root, []
        for depth in range(3):
            logits.append(self.rows[at] + self.noise[depth, at])
            at = int(logits[-1].argmax())
        return build(root, candidates(np.stack(logits), 4), 7)


def exact(model: ToyModel, knobs: Knobs, root: int) -> np.ndarray:
    """Joint distribution of the next three tokens, flattened."""
    step = [naive(row.astype(np.float64), knobs) for row in model.rows]
    joint = np.array([step[root][a] * step[a][b] * step[b][c] for a, b, c in product(range(VOCAB), repeat=3)])
    return joint / joint.sum()


def match(logits: np.ndarray, position: int, knobs: Knobs, tree: Tree, node: int) -> int:
    """The real acceptor: draw from the target; the walk compares."""
    return Sampler(knobs).draw(logits, position, ())


def ratio_test(logits: np.ndarray, position: int, knobs: Knobs, tree: Tree, node: int) -> int:
    """The biased acceptor seen in the wild: draw from the target first, then accept the draft by min(1, p/q)."""
    drawn = Sampler(knobs).draw(logits, position, ())
    child = next((c for c, parent in enumerate(tree.parents) if parent == node), None)
    if child is None or tree.tokens[child] == drawn:
        return drawn
    p = naive(logits.astype(np.float64), knobs)[tree.tokens[child]]
    q = float(np.exp(tree.log_probs[child]))
    uniform = float(philox(knobs.seed, position, np.array([VOCAB + 1]))[0]) / 2**32
    return tree.tokens[child] if uniform < min(1.0, p / q) else drawn


def statistic(acceptor: object) -> tuple[float, float, float]:
    """Chi-square of three decoded tokens, its limit, and how many drafts were accepted per step."""
    model, root = ToyModel(), 3
    counts = np.zeros(VOCAB**3)
    accepted = steps = 0
    expected = exact(model, Knobs(temperature=0.8, top_k=8, top_p=0.95), root)
    for seed in range(DRAWS):
        knobs = Knobs(temperature=0.8, top_k=8, top_p=0.95, seed=seed)
        text: list[int] = []
        while len(text) < 3:
            tree = model.tree(text[-1] if text else root)
            base = len(text)

            def draw(node: int, path: list[int], tree: Tree = tree, base: int = base, knobs: Knobs = knobs) -> int:
                return acceptor(model.rows[tree.tokens[node]], base + len(path), knobs, tree, node)  # type: ignore[operator]

            result = walk(tree, draw)
            text += [tree.tokens[node] for node in result.path[1:]] + [result.next_token]
            accepted += len(result.path) - 1
            steps += 1
        a, b, c = text[:3]
        counts[(a * VOCAB + b) * VOCAB + c] += 1
    # Cells with few expected draws are pooled, as Pearson's test needs.
    rare = expected * DRAWS < 5
    pooled_counts = np.append(counts[~rare], counts[rare].sum())
    pooled = np.append(expected[~rare], expected[rare].sum())
    return chi_square(pooled_counts, pooled), limit(len(pooled) - 1), accepted / steps


def test_speculation_keeps_the_joint_distribution() -> None:
    value, bound, accepted = statistic(match)
    assert 0.3 < accepted < 1.7, "the drafter must be right about half of the time for the test to mean anything"
    assert value < bound


def test_a_ratio_test_acceptor_fails_the_same_test() -> None:
    value, bound, _ = statistic(ratio_test)
    assert value > 2 * bound
