"""Drafts that see the noise of the target's draws: their ranking, and that more of them are drawn."""

from __future__ import annotations

import numpy as np
import pytest

from dflash_core.drafters.draw_noise import RERANKED, SHARE, draw_noise, likeliest, noise_share, ranked, reranked
from dflash_core.knobs import Knobs
from dflash_core.pair_scores import Factors, PairScores
from dflash_core.sampling import Sampler, gumbel
from dflash_core.tree import Candidates
from support.grids import full

SAMPLED = Knobs(temperature=0.8, seed=11)
POSITION, VOCAB = 40, 300


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(4)


def logits(rng: np.random.Generator, rows: int = 5) -> np.ndarray:
    return (rng.standard_normal((rows, VOCAB)) * 2).astype(np.float32)


@pytest.mark.parametrize("knobs", [Knobs(), SAMPLED.replace(top_k=1)])
def test_greedy_draws_have_no_noise(knobs: Knobs, rng: np.random.Generator) -> None:
    rows = logits(rng)
    assert noise_share(knobs) == 0
    assert draw_noise(knobs, POSITION, np.zeros((2, 3), np.int64)) is None
    np.testing.assert_array_equal(ranked(rows, knobs, POSITION).tokens[:, 0], rows.argmax(-1))
    assert likeliest(rows[0], knobs, POSITION) == rows[0].argmax()


def test_the_share_is_in_units_of_the_drafters_own_temperature() -> None:
    assert noise_share(SAMPLED) == pytest.approx(SHARE * 0.8)
    assert noise_share(SAMPLED.replace(tree_temperature=2.0, top_p=0.5, min_p=0.2)) == pytest.approx(SHARE * 0.16)


@pytest.mark.parametrize("width", [1, 3, 8, 12])
def test_candidates_are_ranked_by_their_scores_with_the_noise(width: int, rng: np.random.Generator) -> None:
    rows = logits(rng)
    found = ranked(rows, SAMPLED.replace(tree_width=width), POSITION)
    kept = max(width, RERANKED)
    log_probs = rows - np.log(np.exp(rows.astype(np.float64)).sum(-1, keepdims=True))
    for depth, row in enumerate(log_probs):
        ids = np.argsort(-row)[:kept]
        scores = row[ids] + SHARE * 0.8 * gumbel(11, POSITION + 1 + depth, ids)
        order = np.argsort(-scores)
        assert found.tokens[depth].tolist() == ids[order][:width].tolist()
        share = np.exp(scores) / np.exp(scores).sum() * np.exp(row[ids]).sum()
        np.testing.assert_allclose(np.exp(found.log_probs[depth]), share[order][:width])


def test_a_chain_continues_with_the_first_of_the_ranking(rng: np.random.Generator) -> None:
    rows = logits(rng, 40)
    first = [ranked(row[None], SAMPLED, at).tokens[0, 0] for at, row in enumerate(rows)]
    assert [likeliest(row, SAMPLED, at) for at, row in enumerate(rows)] == first
    assert first != rows.argmax(-1).tolist()


def test_scores_by_the_token_above_get_the_noise_too(rng: np.random.Generator) -> None:
    tokens = np.stack([rng.choice(VOCAB, 6, replace=False) for _ in range(3)]).astype(np.int64)
    marginal = np.sort(rng.standard_normal((3, 6)))[:, ::-1] - 3
    factors = Factors(rng.standard_normal((3, 2)), rng.standard_normal((3, 6, 2)), lambda token: np.full(2, token % 5))
    plain = Candidates(tokens, marginal, PairScores(marginal, factors, 1.0, POSITION), 6)
    noise = draw_noise(SAMPLED, POSITION, tokens)
    assert noise is not None
    found = reranked(plain, noise)
    assert plain.given is not None
    assert found.given is not None
    for depth in range(3):
        before, after = plain.given(depth, 7), found.given(depth, 7)
        np.testing.assert_allclose(np.exp(after).sum(), np.exp(before).sum())
        np.testing.assert_allclose(np.diff(after - before), np.diff(noise[depth]))


@pytest.mark.parametrize(("temperature", "top_p"), [(0.7, 1.0), full(0.7, 0.9), full(1.0, 1.0), (1.0, 0.9)])
def test_more_drafts_are_drawn(temperature: float, top_p: float, rng: np.random.Generator) -> None:
    """A drafter whose logits are the target's with an error of its own, over 3,000 draws."""
    knobs = Knobs(temperature=temperature, top_p=top_p, seed=2)
    sampler, seen, blind = Sampler(knobs), 0, 0
    for position in range(3000):
        target = logits(rng, 1)
        draft = target + rng.standard_normal(target.shape).astype(np.float32) * 0.7
        drawn = sampler.draw(target[0], position + 1, ())
        seen += ranked(draft, knobs, position).tokens[0, 0] == drawn
        blind += draft[0].argmax() == drawn
    assert seen > 1.15 * blind
