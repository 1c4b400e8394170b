"""Medians, their intervals, the order of runs: against values by hand and against their properties."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from dflash_core.bench.statistics import LEVEL, MIN_PAIRS, compare, interval, summary
from dflash_core.lab.schedule import Slot, interleave


def test_a_summary_of_known_values() -> None:
    it = summary([4, 1, 3, 2, 5])
    assert (it.n, it.median, it.low, it.high, it.least, it.most) == (5, 3, 2, 4, 1, 5)
    assert summary([7.5]).low == summary([7.5]).high == 7.5
    with pytest.raises(ValueError, match="no values"):
        summary([])


def coverage(n: int, k: int) -> float:
    """The share of equally likely outcomes of n coins in which k to n - k heads fall."""
    return sum(k <= sum(coins) <= n - k for coins in itertools.product((0, 1), repeat=n)) / 2**n


@pytest.mark.parametrize("n", range(1, 13))
def test_the_interval_is_the_narrowest_that_covers_the_median(n: int) -> None:
    """Outcomes are counted one by one: each value is above the median, or below it, like a coin."""
    values = [float(value) for value in range(n)]
    found = interval(values[::-1])
    if n < MIN_PAIRS:
        assert found is None
        assert coverage(n, 1) < 1 - LEVEL
        return
    assert found is not None
    k = round(found[0]) + 1
    assert found == (values[k - 1], values[n - k])
    assert coverage(n, k) > 1 - LEVEL >= coverage(n, k + 1)


def test_the_fewest_pairs_that_can_tell() -> None:
    assert compare([10.0] * 5, [20.0] * 5).verdict == "too few runs"
    six = compare([10.0] * 6, [20.0] * 6)
    assert (six.verdict, six.difference, six.low, six.high) == ("higher", 1.0, 1.0, 1.0)


def test_a_difference_is_found_and_named_the_right_way() -> None:
    rng = np.random.default_rng(1)
    prompts = rng.uniform(50, 200, 12)  # prompts differ far more than settings do: only pairs can tell
    slow, fast = prompts * rng.normal(1, 0.01, 12), 1.1 * prompts * rng.normal(1, 0.01, 12)
    up, down = compare(list(slow), list(fast)), compare(list(fast), list(slow))
    assert (up.verdict, up.wins, up.losses) == ("higher", 12, 0)
    assert up.difference == pytest.approx(0.1, abs=0.02)
    assert up.low is not None
    assert up.high is not None
    assert up.low < up.difference < up.high
    assert down.verdict == "lower"


def test_noise_is_called_noise() -> None:
    """Two equal settings are found to differ in far fewer than one of twenty experiments."""
    rng = np.random.default_rng(7)
    found = sum(compare(list(rng.normal(100, 5, 12)), list(rng.normal(100, 5, 12))).matters for _ in range(300))
    assert found <= 15


@pytest.mark.parametrize(("a", "b"), [([1.0], []), ([], []), ([0.0], [1.0])])
def test_what_cannot_be_compared(a: list[float], b: list[float]) -> None:
    with pytest.raises(ValueError, match="expected as many"):
        compare(a, b)


@pytest.mark.parametrize(("settings", "prompts", "repeats"), [(1, 1, 1), (2, 1, 4), (3, 5, 2), (7, 2, 3)])
def test_every_run_comes_once(settings: int, prompts: int, repeats: int) -> None:
    slots = list(interleave(settings, prompts, repeats))
    assert Counter(slots) == Counter(
        Slot(s, p, r) for s in range(settings) for p in range(prompts) for r in range(repeats)
    )
    for at in range(0, len(slots), settings):
        block = slots[at : at + settings]
        assert len({(slot.prompt, slot.repeat) for slot in block}) == 1


def test_a_linear_drift_cancels() -> None:
    slots = list(interleave(2, 1, 4))
    assert [slot.setting for slot in slots] == [0, 1, 1, 0, 1, 0, 0, 1]
    for settings in (2, 3, 5):
        slots = list(interleave(settings, 2, 2 * settings))
        means = [np.mean([at for at, slot in enumerate(slots) if slot.setting == s]) for s in range(settings)]
        assert np.ptp(means) == pytest.approx(0)
        firsts = Counter(slot.setting for slot in slots[::settings])
        assert len(firsts) == settings
