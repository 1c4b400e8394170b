"""The output matrix: the best of its logits against the logits themselves."""

from __future__ import annotations

import numpy as np
import pytest

from dflash_core import tree as ddtree
from dflash_core.backends.cuda.activations import INT8, Rounding
from dflash_core.backends.cuda.plan import Card, KernelConfig, plan
from dflash_core.backends.cuda.state import MAX_WIDTH
from dflash_core.drafters.draw_noise import reranked
from dflash_core.sampling import gumbel
from support.engines import Engine
from support.grids import full
from support.matmuls import SMALL, Weights, multiply, packed, random_weights
from support.sampling import block_maxima
from support.step_state import fresh_state
from support.steps import tree_state

BEST = np.dtype([("value", "<f4"), ("id", "<i4")])


def best_parts(
    engine: Engine, weights: Weights, x: np.ndarray, card: Card = SMALL, rounding: Rounding = INT8
) -> np.ndarray:
    """(len(x), thread blocks) of BEST."""
    deal = plan(weights.shapes, weights.columns, card, rounding=rounding, split_k=1)
    n = len(x)
    out = engine.poisoned((n, deal.grid, 8), np.uint8)
    q8, f16 = packed(engine, deal, x)
    for first, count in deal.passes(n):
        kernel = engine.kernel("head.cu", "head_argmax", deal.defines(count))
        args = [weights.launch(deal), q8, f16, out, np.int32(first // 8)]
        kernel(deal.grid, 32 * deal.warps_at(count), args, shared=deal.shared_bytes(count))
    return out.numpy().view(BEST)[..., 0]


def merged(parts: np.ndarray) -> list[int]:
    order = np.lexsort((parts["id"], -parts["value"]), axis=1)
    return [int(parts["id"][row, order[row, 0]]) for row in range(len(parts))]


@pytest.mark.parametrize(
    ("name", "width"),
    [
        pytest.param(name, width, marks=() if at % 3 == turn or name == "Q6_K" else pytest.mark.full)
        for at, name in enumerate(("Q6_K", "Q4_K", "Q8_0", "F16"))
        for turn, width in enumerate((1, 5, 24))
    ],
)
def test_argmax_is_that_of_the_logits(engine: Engine, rng: np.random.Generator, name: str, width: int) -> None:
    weights = random_weights(engine, rng, 512, (name, 1003))
    x = rng.normal(size=(width, 512)).astype(np.float32)
    _, planes = multiply(engine, weights, x, split_k=1)
    logits = planes[0, :, :1003]
    parts = best_parts(engine, weights, x)
    assert merged(parts) == logits.argmax(axis=1).tolist()
    assert np.array_equal(parts["value"].max(axis=1), logits.max(axis=1))


def test_a_wide_pass_in_two_launches(engine: Engine, rng: np.random.Generator) -> None:
    card = Card(3, 40 * 1024, KernelConfig(chunked=False))
    weights = random_weights(engine, rng, 512, ("Q4_K", 200))
    x = rng.normal(size=(40, 512)).astype(np.float32)
    assert len(plan(weights.shapes, 512, card, split_k=1).passes(40)) > 1
    _, planes = multiply(engine, weights, x, card, split_k=1)
    assert merged(best_parts(engine, weights, x, card)) == planes[0, :, :200].argmax(axis=1).tolist()


def test_a_wide_pass_in_chunks(engine: Engine, rng: np.random.Generator) -> None:
    """Several rounds of rows per thread block; the maxima reuse the memory of the last chunk."""
    card = Card(2, 66 * 1024)
    weights = random_weights(engine, rng, 1280, ("Q4_K", 600))
    x = rng.normal(size=(40, 1280)).astype(np.float32)
    deal = plan(weights.shapes, 1280, card, split_k=1)
    assert deal.passes(40) == ((0, 40),)
    assert "CHUNK" in deal.defines(40)
    _, planes = multiply(engine, weights, x, card, split_k=1)
    assert merged(best_parts(engine, weights, x, card)) == planes[0, :, :600].argmax(axis=1).tolist()


def test_ties_go_to_the_lowest_id_and_nans_are_seen(engine: Engine, rng: np.random.Generator) -> None:
    weights = random_weights(engine, rng, 256, ("Q8_0", 300))
    x = np.zeros((3, 256), np.float32)
    x[1] = rng.normal(size=256)
    x[2, 0] = np.nan
    parts = best_parts(engine, weights, x)
    assert merged(parts)[0] == 0
    assert (parts["value"][2] == np.inf).all()
    assert np.isfinite(parts["value"][1]).all()


def test_more_blocks_than_rows(engine: Engine, rng: np.random.Generator) -> None:
    weights = random_weights(engine, rng, 256, ("Q4_K", 30))
    x = rng.normal(size=(2, 256)).astype(np.float32)
    _, planes = multiply(engine, weights, x, Card(9, SMALL.shared_bytes), split_k=1)
    assert merged(best_parts(engine, weights, x, Card(9, SMALL.shared_bytes))) == planes[0, :, :30].argmax(1).tolist()


def head_logits(
    engine: Engine, weights: Weights, x: np.ndarray, *, scale: float | None = None, card: Card = SMALL
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits, maxima and sums (len(x), ..) of head_logits; sums for an inverse temperature `scale`, else untouched."""
    deal = plan(weights.shapes, weights.columns, card, split_k=1)
    n, blocks = len(x), deal.stride // 16
    state = engine.array(tree_state([-1], 0, inv_tree_temperature=scale or 1.0))
    logits, maxima = engine.poisoned((n, deal.stride), np.float32), engine.poisoned((n, blocks), np.float32)
    sums = engine.poisoned((n, blocks), np.float32)
    q8, f16 = packed(engine, deal, x)
    for first, count in deal.passes(n):
        defines = {**deal.defines(count), **({"SUMS": 1} if scale else {})}
        args = [weights.launch(deal), state, q8, f16, logits, maxima, sums, np.int32(first // 8)]
        kernel = engine.kernel("logits.cu", "head_logits", defines)
        kernel(deal.grid, 32 * deal.warps_at(count), args, shared=deal.shared_bytes(count))
    return logits.numpy(), maxima.numpy(), sums.numpy()


PASSES = (
    (1, SMALL), (5, SMALL), (24, SMALL), (40, Card(3, 40 * 1024)), (40, Card(3, 40 * 1024, KernelConfig(chunked=False)))
)  # fmt: skip


# Each pass with one type; with `full` with both.
@pytest.mark.parametrize(
    ("width", "card", "name"),
    [
        (*one, name) if at % 2 == turn else full(*one, name)
        for at, one in enumerate(PASSES)
        for turn, name in enumerate(("Q6_K", "F16"))
    ],
)
def test_logits_leave_the_maxima_and_sums_of_blocks(
    engine: Engine, rng: np.random.Generator, width: int, card: Card, name: str
) -> None:
    vocab, scale = 203, 1.25
    weights = random_weights(engine, rng, 512, (name, vocab))
    x = rng.normal(size=(width, 512)).astype(np.float32)
    _, planes = multiply(engine, weights, x, card, split_k=1)
    for sums_wanted in False, True:
        logits, maxima, sums = head_logits(engine, weights, x, scale=scale if sums_wanted else None, card=card)
        assert np.array_equal(logits[:, :vocab], planes[0, :, :vocab])
        assert np.array_equal(maxima, block_maxima(logits[:, :vocab]))
        if sums_wanted:
            padded = np.full((width, maxima.shape[1] * 16), -np.inf)
            padded[:, :vocab] = logits[:, :vocab]
            below = padded.reshape(width, -1, 16) - maxima[:, :, None]
            np.testing.assert_allclose(sums, np.exp(below * scale).sum(axis=2), rtol=2e-5)
        else:
            assert np.isnan(sums).all()


def test_a_logit_that_is_no_number_shows_in_maxima_and_sums(engine: Engine, rng: np.random.Generator) -> None:
    weights = random_weights(engine, rng, 256, ("Q8_0", 40))
    x = rng.normal(size=(2, 256)).astype(np.float32)
    x[1, 0] = np.nan
    _, maxima, sums = head_logits(engine, weights, x, scale=1.0)
    assert np.isfinite([maxima[0], sums[0]]).all()
    assert (maxima[1] == np.inf).all()
    assert np.isnan(sums[1]).all()


def candidates(engine: Engine, logits: np.ndarray, vocab: int, temperature: float, noise: float = 0.0) -> np.ndarray:
    """The state after `candidates` has seen rows (rows, stride), of which `vocab` columns are tokens. `noise`: what
    drafts get of that of SEED after POSITION."""
    rows, stride = logits.shape
    maxima = block_maxima(logits[:, :vocab])
    padded = np.full((rows, maxima.shape[1] * 16), -np.inf)
    padded[:, :vocab] = logits[:, :vocab]
    with np.errstate(invalid="ignore"):
        below = padded.reshape(rows, -1, 16) - np.where(maxima > -np.inf, maxima, 0)[:, :, None]
        sums = np.exp(below / temperature).sum(axis=2).astype(np.float32)
    st = fresh_state()
    st["draft_depth"], st["inv_tree_temperature"], st["draft_noise"] = rows - 1, 1 / temperature, noise
    st["seed"], st["length"] = SEED, POSITION
    device = engine.array(st)
    sizes = [np.int32(vocab), np.int32(stride), np.int32(0)]
    arguments = [engine.array(logits), engine.array(maxima), engine.array(sums), *sizes]
    engine.kernel("candidates.cu", "candidates")(rows, 512, [device, *arguments])
    return device.numpy()


SEED, POSITION = (1 << 63) + 5, 70


def rounding(logits: np.ndarray, temperature: float) -> np.ndarray:
    """(rows, 1): how far float32 may move a log-probability. A logit, the largest logit and the logarithm of the sum
    are each rounded once, relative to the size of what is subtracted; a sum of exponentials has a small error
    itself."""
    sizes = np.nanmax(np.where(np.isfinite(logits), np.abs(logits), np.nan), axis=1, keepdims=True) / temperature
    return 3 * 2.0**-24 * sizes + 4e-6


@pytest.mark.parametrize("vocab", [9, 17, 1000, 20_011])
def test_candidates_are_the_best_of_the_whole_row(engine: Engine, rng: np.random.Generator, vocab: int) -> None:
    rows, temperature = 6, 0.7
    logits = np.full((rows, vocab + 5), np.nan, np.float32)
    logits[:, :vocab] = np.round(rng.standard_normal((rows, vocab)) * 4, 1)  # with many ties
    if vocab > 16:
        logits[1, : vocab // 2] = -np.inf
    logits[2, :vocab] *= 10
    logits[3, :vocab] = np.sort(logits[3, :vocab])  # the best ones all in one block
    found = candidates(engine, logits, vocab, temperature)
    rows -= 1  # as many as are drafted
    expected = ddtree.candidates(logits[:rows, :vocab], MAX_WIDTH, temperature)
    np.testing.assert_array_equal(found["candidate"][:rows], expected.tokens)
    assert (
        np.abs(found["candidate_log_prob"][:rows] - expected.log_probs) <= rounding(logits[:rows], temperature)
    ).all()
    assert (found["candidate"][rows:] == 0x7F7F7F7F).all()


def test_candidates_are_ranked_by_what_is_known_of_their_draws(engine: Engine, rng: np.random.Generator) -> None:
    logits = rng.standard_normal((6, 3000)).astype(np.float32) * 2
    logits[1, 3:] = -np.inf  # fewer than are kept
    found = candidates(engine, logits, 3000, 0.7, noise=0.6)
    best = ddtree.candidates(logits[:5], MAX_WIDTH, 0.7)
    noise = 0.6 * gumbel(SEED, POSITION + 1 + np.arange(5)[:, None], best.tokens)
    expected = reranked(best, noise)
    there = np.isfinite(expected.log_probs)
    assert (expected.tokens != best.tokens).any()
    assert there.sum(1).tolist() == [8, 3, 8, 8, 8]
    np.testing.assert_array_equal(found["candidate"][:5][there], expected.tokens[there])
    np.testing.assert_allclose(found["candidate_log_prob"][:5][there], expected.log_probs[there], atol=1e-4)
    assert np.isneginf(found["candidate_log_prob"][:5][~there]).all()


def test_candidates_of_a_row_that_is_no_number(engine: Engine, rng: np.random.Generator) -> None:
    logits = rng.standard_normal((3, 700)).astype(np.float32)
    logits[0, 600], logits[1] = np.nan, np.nan
    found = candidates(engine, logits, 700, 1.0)
    assert np.isnan(found["candidate_log_prob"][:2]).all()
    assert (found["candidate"][0] < 700).all()
    assert (found["candidate"][1] == 0).all()
