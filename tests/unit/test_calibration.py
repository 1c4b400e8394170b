"""Calibration: counts by hand, and a drafter that is right as often as it says comes out on the diagonal."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from dflash_core.draft_quality import by_position, by_probability
from dflash_core.events import StageTimes, StepDrafts, StepEvent, StepTree
from dflash_tui.text.step_text import drawn_calibration
from support.turns import step_of, tree_of


def test_by_hand() -> None:
    hit = step_of(tree_of((0, 0), (1, 0), accepted=(0, 1, 2)), bonus=9)
    beside = step_of(tree_of((0, 0), (0, 1), accepted=(0, 2)), bonus=55)
    miss = step_of(tree_of((0, 0), accepted=(0,)), bonus=3)
    one, two, three = by_position([hit, beside, miss])
    assert (one.depth, one.count) == (1, 3)
    assert one.stated == pytest.approx(0.6)
    assert one.hit == pytest.approx(1 / 3)
    assert one.hit_any == 1.0
    assert (two.count, two.hit, two.hit_any) == (2, 0.5, 0.5)
    assert (three.count, three.hit, three.hit_any) == (1, 0.0, 1.0)


def test_nothing_was_drafted() -> None:
    plain = step_of(tree_of(), bonus=5, drafts=StepDrafts())
    assert by_position([plain]) == ()
    assert by_probability([plain]) == ()
    assert "nothing drafted: plain decoding" in drawn_calibration([plain], 60, "this turn").plain
    copied = replace(plain, tree=replace(tree_of((0, 0), accepted=(0, 1)), copied=(1,)), mode="chain")
    assert "nothing drafted: 1 node copied from the text" in drawn_calibration([copied], 60, "this turn").plain


def test_a_drafter_that_is_right_as_often_as_it_says() -> None:
    rng = np.random.default_rng(5)
    steps = []
    for _ in range(4000):
        probs = rng.dirichlet((2.0, 0.7, 0.5, 0.3))
        order = np.argsort(-probs)
        target = int(rng.choice(4, p=probs))
        drafts = StepDrafts((tuple(map(int, order)),), (tuple(math.log(max(probs[n], 1e-300)) for n in order),))
        tree = StepTree((9,), (-1,), (0,), (1.0,), (1.0,), (0,))
        steps.append(StepEvent((target,), tree, 1, 0, 1, StageTimes(), "tree", "", drafts=drafts, bonus=target))
    [position] = by_position(steps)
    assert position.hit == pytest.approx(position.stated, abs=0.02)
    assert position.hit_any == 1.0
    bins = by_probability(steps)
    assert sum(one.count for one in bins) == 16_000
    for one in bins:
        assert one.low <= one.stated <= one.high
        if one.count > 500:
            assert one.hit == pytest.approx(one.stated, abs=0.04)
