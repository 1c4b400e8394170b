"""Draws on the device against dflash_core.sampling, token for token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dflash_core.backends.cuda import state
from dflash_core.backends.cuda.layers.head import all_listed
from dflash_core.knobs import Knobs, Value
from dflash_core.sampling import gumbel
from dflash_core.tree import Tree
from support.engines import Engine
from support.grids import full
from support.sampling import BEHIND, Draws, block_maxima, exact, expected_draws, turn_state
from support.step_state import random_tree


def random_logits(rng: np.random.Generator, rows: int, vocab: int) -> np.ndarray:
    """Rows of the kinds that occur: peaked, flat, coarse with many ties, with tokens ruled out."""
    logits = rng.standard_normal((rows, vocab)) * rng.choice([0.3, 2, 6], (rows, 1))
    logits[::3] = np.round(logits[::3] * 2) / 2
    logits[1::4] -= 100 * (rng.random((len(logits[1::4]), vocab)) < 0.97)
    logits[2::5, rng.random(vocab) < 0.5] = -np.inf
    return (logits + rng.choice([-50, 0, 40], (rows, 1))).astype(np.float32)


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
    """The device's draws after the nodes node0.., one row each."""
    return Draws(engine, turn_state(tree, knobs, answer, length), logits, node0).tokens


def test_draws_are_the_samplers(engine: Engine, rng: np.random.Generator) -> None:
    for _ in range(60 if engine.real else 25):
        vocab = int(rng.choice([5003, 248_320])) if engine.real else int(rng.choice([50, 999, 3000, 9001]))
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


def test_settings_that_list_every_token_need_no_other_kernel(engine: Engine, rng: np.random.Generator) -> None:
    """`all_listed` on the host is LISTED of draw.cuh: the kernels that are then left out would have done nothing."""
    seen = set()
    for _ in range(30):
        vocab = int(rng.choice([50, 999, 3000]))
        tree, knobs = random_tree(rng, vocab), random_knobs(rng, vocab)
        rows = min(len(tree), 3)
        logits = np.concatenate([random_logits(rng, rows, vocab), np.full((rows, 3), 1e30, np.float32)], axis=1)
        st, listed = turn_state(tree, knobs, [7, 8, 7], 40), all_listed(knobs, vocab)
        whole = Draws(engine, st, logits)
        fronts = whole.fronts.view(np.uint8)
        seen.add((listed, bool((fronts == fronts.flat[0]).all())))
        if listed:
            assert Draws(engine, st, logits, listed=True).tokens.tolist() == whole.tokens.tolist(), knobs
        assert whole.tokens[:rows].tolist() == expected_draws(tree, knobs, logits, [7, 8, 7], 40), knobs
    # Listed, and whether no front was made. A large top_k with top_p has neither list nor front.
    assert {(True, True), (False, False)} <= seen <= {(True, True), (False, False), (False, True)}


def test_every_truncation_cuts_where_the_sampler_does(engine: Engine, rng: np.random.Generator) -> None:
    """Many seeds over one row of many ties, -0 and 0 among them: a border that is off by one token would show."""
    vocab, tree = 200, Tree((3,), (-1,), (0,), (0.0,), (0.0,))
    row = np.concatenate([np.round(rng.standard_normal(vocab)), np.full(3, 1e30)]).astype(np.float32)[None]
    for top_k, top_p in ((7, 1.0), (90, 0.8), (0, 0.5), (150, 1.0), (0, 0.03)):
        for _ in range(12):
            knobs = exact(temperature=4.0, top_k=top_k, top_p=top_p, seed=int(rng.integers(2**62)))
            assert draw(engine, tree, knobs, row, [5], 9)[0] == expected_draws(tree, knobs, row, [5], 9)[0]


BESIDE_TOP_K = {
    "no truncation": {},
    "cold": {"temperature": 0.25},
    "top_p": {"top_p": 0.9375},
    "top_p of nearly all": {"top_p": 0.9999},
    "min_p": {"min_p": 0.0625},
    "a large top_k": {"top_k": 3000},
    "top_p, min_p, penalties": {
        "top_p": 0.75, "min_p": 0.01, "repetition_penalty": 1.25, "frequency_penalty": 0.125, "presence_penalty": 0.5
    },
    "penalties that favour": {"top_p": 0.5, "repetition_penalty": 0.75},
}  # fmt: skip


@pytest.mark.parametrize("name", BESIDE_TOP_K)
def test_a_front_decides_without_the_row(engine: Engine, rng: np.random.Generator, name: str) -> None:
    """All logits but those of penalised tokens are NaN for `sample`, so it would draw nothing if it read the row."""
    vocab, rows = 248_320 if engine.real else 9001, 3
    tree = Tree((3, 8, 9), (-1, 0, 1), (0, 1, 2), (0.0,) * 3, (0.0,) * 3)
    again = 0
    for scale in 0.3, 1.0, 4.0:
        logits = (rng.standard_normal((rows, vocab + BEHIND)) * scale).astype(np.float32)
        knobs = exact(**{"temperature": 1.0, "seed": int(rng.integers(2**62)), **BESIDE_TOP_K[name]})
        answer = rng.integers(0, vocab, 40).tolist()
        hidden = np.full_like(logits, np.nan)
        counted = sorted({*answer, *tree.tokens})
        hidden[:, counted] = logits[:, counted]
        st = turn_state(tree, knobs, answer, 9)
        found = Draws(engine, st, logits, hidden=hidden).tokens[:rows]
        looked_again = found < 0
        again += looked_again.sum()
        expected = expected_draws(tree, knobs, logits, answer, 9)
        assert np.where(looked_again, expected, found).tolist() == expected
    assert again <= 1  # rounding leaves one row in ten thousand undecided


@pytest.mark.parametrize("top_k", [1, 40, 512])
@pytest.mark.parametrize("penalised", [False, True])
def test_a_list_decides_without_the_row(engine: Engine, rng: np.random.Generator, top_k: int, penalised: bool) -> None:
    """Every block of tokens that cannot contain one of the best is NaN."""
    vocab = 248_320 if engine.real else 30_000
    tree = Tree((3,), (-1,), (0,), (0.0,), (0.0,))
    for scale in 1e-4, 1.0, 1e4:
        logits = (rng.standard_normal((1, vocab + BEHIND)) * scale).astype(np.float32)
        answer = rng.integers(0, vocab, 300).tolist()
        knobs = exact(
            temperature=min(max(scale, 0.125), 4.0), top_k=top_k, top_p=0.875, seed=int(rng.integers(2**62)),
            repetition_penalty=1.5 if penalised else 1.0,
        )  # fmt: skip
        maxima = block_maxima(logits[:, :vocab])[0]
        wanted = top_k + (state.HISTORY if penalised else 0)
        least = np.sort(maxima)[-min(2 * wanted + 32, len(maxima))]
        hidden = logits.copy()
        hidden[:, :vocab][:, np.repeat(maxima < least, 16)[:vocab]] = np.nan
        counted = sorted({*answer, 3})
        hidden[:, counted] = logits[:, counted]
        found = Draws(engine, turn_state(tree, knobs, answer, 9), logits, hidden=hidden).tokens[:1].tolist()
        assert found == expected_draws(tree, knobs, logits, answer, 9)


@pytest.mark.parametrize("truncation", [{"top_k": 8}, {"top_k": 600}, {"top_p": 0.5}, {"min_p": 0.125}, {}])
@pytest.mark.parametrize("presence", [2.0, full(0.5), -0.5])
def test_penalties_of_the_best_tokens(
    engine: Engine, rng: np.random.Generator, truncation: dict[str, Value], presence: float
) -> None:
    """The best tokens are penalised: each must count with its new value only."""
    vocab, best = 9001, 120
    tree = Tree((3,), (-1,), (0,), (0.0,), (0.0,))
    logits = rng.standard_normal((1, vocab + BEHIND)).astype(np.float32) / 4
    logits[0, :best] += 1.75  # they have most of the weight, and fill the blocks that a list is made of
    order = (-logits[0, :vocab]).argsort()
    for seed in range(20):
        answer = rng.permutation(order[:best])[: int(rng.choice([30, best]))].tolist()
        knobs = exact(temperature=0.25 if seed % 2 else 4.0, presence_penalty=presence, seed=seed, **truncation)
        found = Draws(engine, turn_state(tree, knobs, answer, 9), logits).tokens[:1].tolist()
        assert found == expected_draws(tree, knobs, logits, answer, 9)


@pytest.mark.parametrize("vocab", [1, 3, 4, 15, 16, 17, 4093, 4096, 4098, 8195])
def test_rows_of_any_length_and_place(engine: Engine, rng: np.random.Generator, vocab: int) -> None:
    """Rows that begin at a multiple of 16 bytes and others; the best tokens are the last ones, in half of the rows."""
    tree = Tree((0, 0, 0), (-1, 0, 1), (0, 1, 2), (0.0,) * 3, (0.0,) * 3)
    settings: tuple[dict[str, Value], ...] = ({}, {"top_p": 0.75}, {"top_k": 5}, {"presence_penalty": 0.5})
    for behind in range(4):
        logits = (rng.standard_normal((3, vocab + behind)) / 2).astype(np.float32)
        logits[::2, max(vocab - 5, 0) : vocab] += 9
        logits[:, vocab:] = 1e30
        for more in settings:
            knobs = exact(**{"temperature": 1.0, "seed": int(rng.integers(2**62)), **more})
            answer = [vocab - 1, 0]
            found = Draws(engine, turn_state(tree, knobs, answer, 9), logits, behind=behind).tokens[:3].tolist()
            assert found == expected_draws(tree, knobs, logits, answer, 9, behind=behind), (behind, more)


def listed_rows(rng: np.random.Generator, kind: str, vocab: int) -> np.ndarray:
    """Two rows without ties, for lists that end where tokens are dense."""
    logits = rng.permuted(np.broadcast_to(np.arange(vocab) / vocab, (2, vocab)), axis=1)
    if kind == "normal":
        logits = rng.standard_normal((2, vocab))
    if kind == "far below the best":  # the first digit of a distance is the same for all but the best
        logits -= 100
        logits[:, rng.integers(vocab, size=3)] += 100
    if kind == "the last ones":
        logits = np.sort(logits, axis=1)
        logits[:, np.arange(vocab) % 16 != (vocab - 1) % 16] -= 2
    if kind == "few finite":
        logits[:, 1:][rng.random((2, vocab - 1)) < 0.97] = -np.inf
    return logits.astype(np.float32)


@pytest.mark.parametrize("kind", ["even", "normal", "far below the best", "the last ones", "few finite"])
@pytest.mark.parametrize(("vocab", "top_k"), [(3, 2), (9001, 0), (20_003, 100), (300_007, 500)])
def test_a_list_is_the_first_tokens_of_the_order(
    engine: Engine, rng: np.random.Generator, kind: str, vocab: int, top_k: int
) -> None:
    """All tokens down to the block maximum that is wanted, and few blocks more. A thread keeps 16 maxima, and reads
    those of a larger vocabulary again."""
    tree = Tree((3, 1), (-1, 0), (0, 1), (0.0,) * 2, (0.0,) * 2)
    logits = listed_rows(rng, kind, vocab)
    knobs = exact(temperature=1.0, top_k=top_k, seed=int(rng.integers(2**62)))
    draws = Draws(engine, turn_state(tree, knobs, [1], 9), logits, listed=top_k > 0, behind=0)
    assert draws.tokens[:2].tolist() == expected_draws(tree, knobs, logits, [1], 9, behind=0)
    wanted = top_k or -(-vocab // 128)
    for row, found, maxima in zip(logits, draws.rows, block_maxima(logits)):
        assert found["count"] >= 0
        ids = found["id"][: found["count"]]
        np.testing.assert_array_equal(found["value"][: found["count"]], row[ids])
        border = row[ids].min() if len(ids) else np.float32(np.inf)
        assert sorted(ids.tolist()) == np.flatnonzero((row >= border) & (row > -np.inf)).tolist()
        assert border <= np.sort(maxima)[-min(wanted, len(maxima))] or (maxima > -np.inf).sum() < wanted
        if kind != "far below the best":  # where f32 has few values left, many are equal
            assert (maxima >= border).sum() <= wanted + max(wanted // 4, 1)


@pytest.mark.parametrize("kind", ["flat", "spread", "peaked", "few finite", "ties", "cold"])
def test_no_token_that_scores_higher_than_the_list_is_left_out(
    engine: Engine, rng: np.random.Generator, kind: str
) -> None:
    """The scan compares four tokens at once, and must add each of them that reaches the best score of the list."""
    vocab = 248_320 if engine.real else 30_001
    tree = Tree((3,), (-1,), (0,), (0.0,), (0.0,))
    added = 0
    for _ in range(4):
        logits = rng.standard_normal((1, vocab)) * {"flat": 0.01, "peaked": 4.0, "ties": 0.3}.get(kind, 1.0)
        if kind == "few finite":
            logits[rng.random((1, vocab)) < 0.9] = -np.inf
        if kind == "ties":
            logits = np.round(logits * 64) / 64
        logits = logits.astype(np.float32)
        knobs = exact(temperature=0.25 if kind == "cold" else 1.0, seed=int(rng.integers(2**62)))
        found = Draws(engine, turn_state(tree, knobs, [5], 9), logits, behind=0).rows[0]
        score = logits[0] / np.float64(knobs.temperature) + gumbel(knobs.seed, 10, np.arange(vocab))
        more = found["added_id"][: found["added"]]
        both = {*found["id"][: found["count"]].tolist(), *more.tolist()}
        assert set(np.flatnonzero(score >= found["enough"]).tolist()) <= both
        assert (score[more] >= found["enough"] - 0.01).all()
        np.testing.assert_array_equal(logits[0, more], found["added_value"][: found["added"]])
        added += found["added"]
    assert added > 0 or kind in ("peaked", "cold")


def test_fronts_hold_few_tokens(engine: Engine, rng: np.random.Generator) -> None:
    """A front is a list of records, each harder to beat than the last: about ln(tokens) of them."""
    vocab = 248_320 if engine.real else 20_000
    tree = Tree((3,), (-1,), (0,), (0.0,), (0.0,))
    for scale in 0.01, 1.0, 5.0:
        logits = (rng.standard_normal((1, vocab + BEHIND)) * scale).astype(np.float32)
        knobs = exact(temperature=1.0, top_p=0.5, seed=int(rng.integers(2**62)))
        draws = Draws(engine, turn_state(tree, knobs, [5], 9), logits)
        front = draws.fronts[0]
        assert draws.rows[0]["added"] < 1000
        assert 0 < front["count"] < 40
        assert logits[0, :vocab].argmax() in front["id"][: front["count"]]


@pytest.mark.parametrize("kind", ["flat", "normal", "ties", "steep", "few finite", "alone"])
def test_a_front_is_what_no_earlier_token_outscores(engine: Engine, rng: np.random.Generator, kind: str) -> None:
    """In the whole row: no more and no less, but for scores that f32 does not tell apart."""
    vocab = 248_320 if engine.real else 20_003
    tree = Tree((3,), (-1,), (0,), (0.0,), (0.0,))
    logits = rng.standard_normal((1, vocab)) * {"flat": 0.01, "steep": 9.0}.get(kind, 1.0)
    if kind == "ties":
        logits = np.round(logits * 64) / 64
    if kind == "few finite":
        logits[rng.random((1, vocab)) < 0.9] = -np.inf
    if kind == "alone":
        logits[:, np.arange(vocab) != 77] = -np.inf
    logits = logits.astype(np.float32)
    for _ in range(4):
        knobs = exact(temperature=1.0, seed=int(rng.integers(2**62)))
        front = Draws(engine, turn_state(tree, knobs, [5], 9), logits, behind=0).fronts[0]
        found = front["id"][: front["count"]].tolist()
        assert len(found) == len(set(found)) > 0
        np.testing.assert_array_equal(front["value"][: front["count"]], logits[0, found])
        order = np.argsort(-logits[0], kind="stable")
        score = (logits[0] + gumbel(knobs.seed, 10, np.arange(vocab)))[order]
        best_before = np.concatenate([[-np.inf], np.maximum.accumulate(score)[:-1]])
        kept = set(order[(score >= best_before) & (score > -np.inf)].tolist())
        assert kept <= set(found) <= kept | set(order[score > best_before - 0.01].tolist())


@pytest.mark.parametrize("kind", ["flat", "ties", "zeros", "few finite", "penalised"])
@pytest.mark.parametrize("setting", [{"top_k": 3000}, {"top_p": 0.9}])
def test_what_comes_before_the_tokens_of_a_front(
    engine: Engine, rng: np.random.Generator, kind: str, setting: dict[str, Value]
) -> None:
    """By part: the number of tokens or their weight, of equal values those with a lower id."""
    vocab, part = 20_003, 4096
    tree = Tree((3,), (-1,), (0,), (0.0,), (0.0,))
    logits = rng.standard_normal((1, vocab))
    if kind == "ties":
        logits[:, rng.random(vocab) < 0.75] = -10  # the list is not too long
        logits[:, ::5] = 0.25
    if kind == "zeros":  # of either sign, which are equal
        logits = np.minimum(-np.abs(logits), -0.01)
        logits[:, ::37] = np.where(rng.random(len(logits[0, ::37])) < 0.5, 0.0, -0.0)
    if kind == "few finite":
        logits[:, rng.random(vocab) < 0.9] = -np.inf
    logits = logits.astype(np.float32)
    answer = rng.permutation(vocab)[:100].tolist() if kind == "penalised" else []
    seen = 0
    for _ in range(4):
        more: dict[str, Value] = {"repetition_penalty": 0.75} if answer else {}
        knobs = exact(**{"temperature": 0.5, "seed": int(rng.integers(2**62)), **setting, **more})
        draws = Draws(engine, turn_state(tree, knobs, answer, 9), logits, behind=0)
        found, front, row = draws.rows[0], draws.fronts[0], logits[0].astype(np.float64)
        row[answer] = -np.inf
        weights = np.exp((row - found["best"]) / 0.5)
        for place in range(front["count"]):
            value, token = front["value"][place], front["id"][place]
            before = (row > value) | ((row == value) & (np.arange(vocab) < token))
            of_parts = draws.before[0]
            for i in range(-(-vocab // part)):
                own = slice(i * part, (i + 1) * part)
                if "top_k" in setting:
                    assert of_parts["count"][i, place] == before[own].sum()
                else:
                    expected = weights[own][before[own]].sum()
                    np.testing.assert_allclose(of_parts["weight"][i, place], expected, rtol=1e-5)
                    np.testing.assert_allclose(of_parts["total"][i], weights[own].sum(), rtol=1e-5)
            seen += 1
    assert seen > 3


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
    st = turn_state(random_tree(rng, 100), exact(), [5], 9)
    st["stop"] = state.StopCode.CANCELLED
    assert (Draws(engine, st, np.zeros((1, 103), np.float32)).tokens == 0x7F7F7F7F).all()
