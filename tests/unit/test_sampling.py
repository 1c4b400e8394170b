"""The sampler chain: each stage, their order, and the resulting draws."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from dflash_core.knobs import Knobs
from dflash_core.sampling import Sampler, gumbel, philox
from support.statistics import chi_square, limit, truncated

VOCAB = 12
DRAWS = 6000


def test_philox_known_answers() -> None:
    """Random123's published vector for philox4x32-10 with zero counter words: its four words are of four tokens."""
    assert philox(0, 0, np.arange(4)).tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ids = np.array([1, 90_001, 6, 248_319, 6])
    assert philox(5, 2**33, ids).tolist() == philox(5, 2**33, np.arange(248_320))[ids].tolist()
    assert len({int(philox(s, p, np.array([t]))[0]) for s in (1, 2**40) for p in (0, 9) for t in (0, 5)}) == 8


def test_gumbel_is_standard() -> None:
    noise = gumbel(3, 17, np.arange(200_000))
    assert abs(noise.mean() - 0.57722) < 0.01
    assert abs(noise.var() - np.pi**2 / 6) < 0.02
    # Tokens that share a call have noise of their own.
    between = np.corrcoef(noise.reshape(-1, 4), rowvar=False) - np.eye(4)
    assert np.abs(between).max() < 4 / np.sqrt(50_000)


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
    expected = truncated(row.astype(np.float64), knobs)
    sampler = Sampler(knobs)
    counts = Counter(sampler.draw(row, position, ()) for position in range(DRAWS))
    assert set(counts) <= set(np.flatnonzero(expected))
    assert chi_square(np.array([counts[t] for t in range(VOCAB)]), expected) < limit(np.count_nonzero(expected) - 1)


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


def test_the_window_is_the_last_256_tokens_exactly() -> None:
    row = np.array([1.0, 3.0, 2.5, -1.0], np.float32)
    sampler = Sampler(Knobs(presence_penalty=0.6))
    assert sampler.draw(row, 0, [1] + [0] * 255) == 2
    assert sampler.draw(row, 0, [1] + [0] * 256) == 1


def test_the_order_of_the_chain() -> None:
    """Rows on which another order would keep or draw something else."""
    # Repetition before the additive penalties: 4 / 2 - 1 = 1, and not (4 - 1) / 2 = 1.5.
    row = np.array([4.0, 1.2], np.float32)
    assert Sampler(Knobs(repetition_penalty=2, presence_penalty=1)).draw(row, 0, [0]) == 1
    # top_k before top_p: of the two that stay the first holds 0.6, so 0.55 keeps it alone; of all four it holds 0.36.
    row = np.log(np.array([0.36, 0.24, 0.2, 0.2], np.float32))
    ids, _ = Sampler(Knobs(temperature=1, top_k=2, top_p=0.55)).scores(row, 0, ())
    assert ids.tolist() == [0]
    # temperature before top_p: heated to 4 the first holds far less than half.
    row = np.log(np.array([0.6, 0.2, 0.1, 0.1], np.float32))
    assert len(Sampler(Knobs(temperature=4, top_p=0.5)).scores(row, 0, ())[0]) == 2
    assert len(Sampler(Knobs(temperature=1, top_p=0.5)).scores(row, 0, ())[0]) == 1
    # top_p before min_p: the mass that top_p counts includes what min_p would drop.
    row = np.log(np.array([0.5, 0.3, 0.1, 0.1], np.float32))
    assert Sampler(Knobs(temperature=1, top_p=0.6, min_p=0.5)).scores(row, 0, ())[0].tolist() == [0, 1]
    assert Sampler(Knobs(temperature=1, top_p=0.82, min_p=0.3)).scores(row, 0, ())[0].tolist() == [0, 1]


@pytest.mark.parametrize(
    "knobs",
    [
        Knobs(temperature=1e-310, min_p=0.1),
        Knobs(temperature=1e-310, top_p=0.5),
        Knobs(temperature=1, top_p=0),
        Knobs(temperature=1, min_p=1),
        Knobs(temperature=1, top_k=1),
    ],
)
def test_knobs_at_their_ends_leave_the_best_token(knobs: Knobs) -> None:
    row = np.array([1.0, 3.0, -np.inf, 2.0], np.float32)
    with np.errstate(all="raise", under="ignore"):
        assert Sampler(knobs).draw(row, 7, ()) == 1


def test_large_seeds_and_positions_count_whole() -> None:
    ids = np.arange(5)
    assert not np.array_equal(philox(1, 7, ids), philox(1, 7 + 2**32, ids))
    assert not np.array_equal(philox(1, 7, ids), philox(1 + 2**32, 7, ids))


def test_a_draw_depends_on_seed_position_and_nothing_else() -> None:
    row = np.random.default_rng(1).standard_normal(VOCAB).astype(np.float32)
    sampler = Sampler(Knobs(temperature=1, seed=4))
    assert len({sampler.draw(row, 9, history) for history in ((), (1, 2), (3,))}) == 1
    assert len({sampler.draw(row, position, ()) for position in range(40)}) > 3
    assert len({Sampler(Knobs(temperature=1, seed=s)).draw(row, 9, ()) for s in range(40)}) > 3
