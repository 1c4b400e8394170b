"""Which experts are exchanged: those whose use differs by more than chance, the largest gains first."""

from __future__ import annotations

import numpy as np

from dflash_core.backends.cuda.expert_cache import HALF_LIFE, Exchange, chosen


def test_the_most_used_take_the_slots_of_the_least_used() -> None:
    scores = np.array([[0.0, 100.0, 1.0, 50.0]])
    resident = np.array([[0, 3]])
    assert chosen(scores, resident, 10) == [Exchange(0, 0, 1)]  # 1 is not worth the slot of 50


def test_small_differences_are_chance() -> None:
    assert not chosen(np.array([[10.0, 16.0]]), np.array([[0]]), 10)
    assert chosen(np.array([[10.0, 30.0]]), np.array([[0]]), 10)
    assert not chosen(np.zeros((3, 8)), np.tile(np.arange(4), (3, 1)), 10)


def test_the_largest_gains_of_all_layers_come_first() -> None:
    scores = np.array([[0.0, 50.0, 90.0], [0.0, 0.0, 70.0]])
    resident = np.array([[0], [1]])
    assert chosen(scores, resident, 1) == [Exchange(0, 0, 2)]
    assert chosen(scores, resident, 2) == [Exchange(0, 0, 2), Exchange(1, 0, 2)]


def test_uniform_use_settles() -> None:
    """Where all experts are used alike, hardly anything is exchanged; where use is skewed, the most used get in."""
    rng = np.random.default_rng(0)
    for skew in (0.0, 1.0):
        share = (1 + np.arange(256.0)) ** -skew
        share = rng.permutation(share / share.sum())
        scores, resident, moved = np.zeros((1, 256)), np.arange(128)[None], list[int]()
        for _ in range(400):
            new = rng.multinomial(8 * 16, share)[None]
            scores = scores * 0.5 ** (16 / HALF_LIFE) + new
            exchanges = chosen(scores, resident, 64)
            for one in exchanges:
                resident[one.layer, one.slot] = one.expert
            moved.append(len(exchanges))
        assert len(set(resident[0].tolist())) == 128
        inside = share[resident[0]].sum()
        if skew:
            assert inside > 0.95 * np.sort(share)[-128:].sum()
        assert np.mean(moved[-200:]) < 0.5
