"""The output matrix: the best of its logits against the logits themselves."""

from __future__ import annotations

import numpy as np
import pytest

from dflash_core.backends.cuda import acts
from dflash_core.backends.cuda.plan import WARPS, Card, plan
from support.engines import Engine
from support.matmuls import SMALL, Weights, multiply, random_weights
from support.steps import tree_state

BEST = np.dtype([("value", "<f4"), ("id", "<i4")])
TOP = np.dtype([("value", "<f4", 8), ("id", "<i4", 8), ("most", "<f4"), ("sum", "<f4"), ("unused", "<f4", 2)])


def best_parts(engine: Engine, weights: Weights, x: np.ndarray, card: Card = SMALL) -> np.ndarray:
    """(len(x), thread blocks) of BEST."""
    deal = plan(weights.shapes, weights.columns, card, split_k=1)
    n = len(x)
    out = engine.poisoned((n, deal.grid, 8), np.uint8)
    q8 = engine.array(acts.pack_q8(x)) if deal.needs_q8 else engine.poisoned((8,), np.uint8)
    f16 = engine.array(acts.pack_f16(x)) if deal.needs_f16 else engine.poisoned((8,), np.uint8)
    for first, count in deal.passes(n):
        kernel = engine.kernel("head.cu", "head_argmax", deal.defines(count))
        args = [weights.launch(deal), q8, f16, out, np.int32(first // 8)]
        kernel(deal.grid, WARPS * 32, args, shared=deal.shared_bytes(count))
    return out.numpy().view(BEST)[..., 0]


def merged(parts: np.ndarray) -> list[int]:
    order = np.lexsort((parts["id"], -parts["value"]), axis=1)
    return [int(parts["id"][row, order[row, 0]]) for row in range(len(parts))]


@pytest.mark.parametrize("name", ["Q6_K", "Q4_K", "Q8_0", "F16"])
@pytest.mark.parametrize("width", [1, 5, 24])
def test_argmax_is_that_of_the_logits(engine: Engine, rng: np.random.Generator, name: str, width: int) -> None:
    weights = random_weights(engine, rng, 512, (name, 1003))
    x = rng.normal(size=(width, 512)).astype(np.float32)
    _, planes = multiply(engine, weights, x, split_k=1)
    logits = planes[0, :, :1003]
    parts = best_parts(engine, weights, x)
    assert merged(parts) == logits.argmax(axis=1).tolist()
    assert np.array_equal(parts["value"].max(axis=1), logits.max(axis=1))


def test_a_wide_pass_in_two_launches(engine: Engine, rng: np.random.Generator) -> None:
    card = Card(3, 40 * 1024)
    weights = random_weights(engine, rng, 512, ("Q4_K", 200))
    x = rng.normal(size=(40, 512)).astype(np.float32)
    assert len(plan(weights.shapes, 512, card, split_k=1).passes(40)) > 1
    _, planes = multiply(engine, weights, x, card, split_k=1)
    assert merged(best_parts(engine, weights, x, card)) == planes[0, :, :200].argmax(axis=1).tolist()


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


@pytest.mark.parametrize("vocab", [17, 1000, 9001])
def test_top_of_each_part(engine: Engine, rng: np.random.Generator, vocab: int) -> None:
    parts, rows, scale = 3, 2, 0.7
    stride = vocab + 7
    logits = np.full((rows, stride), np.nan, np.float32)
    logits[:, :vocab] = rng.normal(size=(rows, vocab)).astype(np.float32) * 8
    logits[0, 11], logits[0, 5] = 40, 40  # a tie
    state = engine.array(tree_state([-1], 0, draft_depth=rows, inv_tree_temperature=scale))
    out = engine.poisoned((rows, parts, TOP.itemsize), np.uint8)
    kernel = engine.kernel("head.cu", "head_top")
    kernel((parts, rows), 256, [state, engine.array(logits), np.int32(vocab), np.int32(stride), out])
    got = out.numpy().view(TOP)[..., 0]
    steps = -(-vocab // 256)
    for row in range(rows):
        for part in range(parts):
            begin, end = steps * part // parts * 256, min(steps * (part + 1) // parts * 256, vocab)
            own = logits[row, begin:end]
            order = np.lexsort((np.arange(len(own)), -own))[:8]
            found = min(8, len(own))
            assert got["id"][row, part, :found].tolist() == (order + begin).tolist()
            assert np.array_equal(got["value"][row, part, :found], own[order])
            assert (got["value"][row, part, found:] == -np.inf).all()
            if len(own):
                most = np.float32(own.max() * np.float32(scale))
                assert got["most"][row, part] == most
                assert np.isclose(got["sum"][row, part], np.exp(own.astype(np.float64) * scale - most).sum(), rtol=2e-6)
            else:
                assert (got["most"][row, part], got["sum"][row, part]) == (-np.inf, 0)
