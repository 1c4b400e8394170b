"""Draws on the device against dflash_core.sampling, token for token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dflash_core.backends.cuda import state
from dflash_core.knobs import Knobs
from dflash_core.sampling import Sampler
from dflash_core.tree import Tree
from support.engines import Engine
from support.step_state import fresh_state, put_tree, random_tree

THREADS = 256


def random_logits(rng: np.random.Generator, rows: int, vocab: int) -> np.ndarray:
    """Rows of the kinds that occur: peaked, flat, coarse with many ties, with tokens ruled out."""
    logits = rng.standard_normal((rows, vocab)) * rng.choice([0.3, 2, 6], (rows, 1))
    logits[::3] = np.round(logits[::3] * 2) / 2
    logits[1::4] -= 100 * (rng.random((len(logits[1::4]), vocab)) < 0.97)
    logits[2::5, rng.random(vocab) < 0.5] = -np.inf
    return (logits + rng.choice([-50, 0, 40], (rows, 1))).astype(np.float32)


def exact(**knobs: Any) -> Knobs:
    """Knobs whose fractions float32 holds, as the device's state does."""
    return Knobs(**{k: float(np.float32(v)) if isinstance(v, float) else v for k, v in knobs.items()})


def random_knobs(rng: np.random.Generator, vocab: int) -> Knobs:
    penalties = rng.random() < 0.5
    return exact(
        temperature=float(rng.choice([0.0, 0.05, 0.7, 1.0, 5.0], p=[0.1, 0.2, 0.3, 0.3, 0.1])),
        top_k=int(rng.choice([0, 1, 2, 20, 100, vocab - 1, vocab, 4 * vocab])),
        top_p=float(rng.choice([0.0, 0.1, 0.5, 0.9, 0.999, 1.0])),
        min_p=float(rng.choice([0.0, 0.05, 0.3, 1.0], p=[0.6, 0.2, 0.1, 0.1])),
        repetition_penalty=float(rng.choice([1.0, 1.3, 0.5])) if penalties else 1.0,
        frequency_penalty=float(rng.choice([0.0, 0.2, -1.5])) if penalties else 0.0,
        presence_penalty=float(rng.choice([0.0, 0.5, -2.0])) if penalties else 0.0,
        seed=int(rng.integers(0, 2**63 - 1)),
    )


def draw(
    engine: Engine, tree: Tree, knobs: Knobs, logits: np.ndarray, answer: list[int], length: int, node0: int = 0
) -> np.ndarray:
    """The device's draws after the nodes node0.., one row each; the logits must be what they were afterwards."""
    st = fresh_state()
    put_tree(st, tree)
    state.write_knobs(st, knobs, "tree", 16)
    st["seed"], st["length"], st["answered"] = knobs.seed, length, len(answer)
    for i, token in list(enumerate(answer))[-state.HISTORY :]:
        st["history"][i % state.HISTORY] = token
    device, rows = engine.array(st), engine.array(logits)
    vocab, stride = logits.shape[1] - 3, logits.shape[1]  # what lies behind the vocabulary is not read
    arguments = [device, rows, np.int32(vocab), np.int32(stride), np.int32(node0)]
    engine.kernel("sample.cu", "sample", {"THREADS": THREADS})(len(logits), THREADS, arguments)
    np.testing.assert_array_equal(rows.numpy(), logits)
    return device.numpy()["draw"]


def expected_draws(
    tree: Tree, knobs: Knobs, logits: np.ndarray, answer: list[int], length: int, node0: int = 0
) -> list[int]:
    sampler = Sampler(knobs)
    tokens = []
    for row, node in zip(logits, range(node0, len(tree))):
        path: list[int] = []
        at = node
        while at > 0:
            path.insert(0, tree.tokens[at])
            at = tree.parents[at]
        tokens.append(sampler.draw(row[:-3], length + tree.depths[node] + 1, answer + path))
    return tokens


def test_draws_are_the_samplers(engine: Engine, rng: np.random.Generator) -> None:
    for _ in range(60 if engine.real else 25):
        vocab = int(rng.choice([5003, 248_320])) if engine.real else int(rng.choice([50, 999, 3000]))
        tree = random_tree(rng, vocab)
        node0 = 64 if len(tree) > 70 else 0
        rows = min(len(tree) - node0 + 2, 6)
        logits = np.concatenate([random_logits(rng, rows, vocab), np.full((rows, 3), 1e30, np.float32)], axis=1)
        knobs = random_knobs(rng, vocab)
        answer = rng.integers(0, min(vocab, 300), int(rng.choice([1, 40, 250, 700]))).tolist()
        length = int(rng.choice([3, 70_000]))
        found = draw(engine, tree, knobs, logits, answer, length, node0)
        expected = expected_draws(tree, knobs, logits, answer, length, node0)
        assert found[node0 : node0 + len(expected)].tolist() == expected, knobs
        assert (found[node0 + rows :] == 0x7F7F7F7F).all()
        assert (found[len(tree) :] == 0x7F7F7F7F).all()


def test_every_truncation_cuts_where_the_sampler_does(engine: Engine, rng: np.random.Generator) -> None:
    """Many seeds over one row of many ties, -0 and 0 among them: a border that is off by one token would show."""
    vocab, tree = 200, Tree((3,), (-1,), (0,), (0.0,), (0.0,))
    row = np.concatenate([np.round(rng.standard_normal(vocab)), np.full(3, 1e30)]).astype(np.float32)[None]
    for top_k, top_p in ((7, 1.0), (90, 0.8), (0, 0.5), (150, 1.0), (0, 0.03)):
        for _ in range(12):
            knobs = exact(temperature=4.0, top_k=top_k, top_p=top_p, seed=int(rng.integers(2**62)))
            assert draw(engine, tree, knobs, row, [5], 9)[0] == expected_draws(tree, knobs, row, [5], 9)[0]


@pytest.mark.parametrize("damage", [np.nan, np.inf, "all -inf"])
def test_numbers_that_are_not_finite_draw_nothing(engine: Engine, rng: np.random.Generator, damage: Any) -> None:
    tree = random_tree(rng, 100)
    logits = rng.standard_normal((1, 103)).astype(np.float32)
    if damage == "all -inf":
        logits[0, :] = -np.inf
    else:
        logits[0, 37] = damage
    for knobs in (exact(temperature=1.0, top_p=0.9), exact(repetition_penalty=1.5)):
        assert draw(engine, tree, knobs, logits, [1, 37], 5)[0] == -1


def test_a_stopped_turn_draws_nothing(engine: Engine, rng: np.random.Generator) -> None:
    st = fresh_state()
    put_tree(st, random_tree(rng, 100))
    st["stop"] = state.StopCode.CANCELLED
    device, rows = engine.array(st), engine.array(np.zeros((1, 100), np.float32))
    arguments = [device, rows, np.int32(100), np.int32(100), np.int32(0)]
    engine.kernel("sample.cu", "sample", {"THREADS": THREADS})(1, THREADS, arguments)
    assert (device.numpy()["draw"] == 0x7F7F7F7F).all()
