"""Successive halving and its verdict: made-up speeds, no model, milliseconds."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from dflash_core.drafters.capabilities import BLOCK_KNOBS, Capabilities
from dflash_core.knobs import Knobs
from dflash_core.lab.candidates import arms, around, label
from dflash_core.lab.grid import Setting
from dflash_core.lab.halving import TARGETS, Arm, Halving, Next, Run
from dflash_core.limits import Limits

LIMITS = Limits(Capabilities("dflash", 16), 4096, tree_width=8)


def setting(budget: int, **more: object) -> Setting:
    return Setting(f"tree {budget}", Knobs(mode="tree", budget=budget, **more))  # type: ignore[arg-type]


def arm(budget: int, role: str = "") -> Arm:
    return Arm(setting(budget), role)  # type: ignore[arg-type]


def played(it: Halving, speed: Callable[[Arm, int], float]) -> list[Next]:
    """Run everything that is asked for."""
    asked = []
    while (one := it.next()) is not None:
        asked.append(one)
        it.add(one, Run(speed(it.arms[one.arm], one.pair), 3.0, 20.0, 0.1))
    return asked


def field(count: int = 15) -> list[Arm]:
    return [arm(1, "now"), arm(2, "auto"), arm(3, "plain"), *(arm(10 + n) for n in range(count))]


def test_the_best_is_found_with_a_third_of_the_runs() -> None:
    it = Halving(field(16))
    asked = played(it, lambda one, pair: 100 + one.setting.knobs.budget + pair)
    verdict = it.verdict()
    assert verdict is not None
    assert it.arms[verdict.best].setting.knobs.budget == 25
    assert verdict.real
    assert verdict.settled
    assert len(asked) < 19 * TARGETS[-1] / 3


def test_any_two_that_are_left_have_the_same_pairs() -> None:
    it = Halving(field())
    while (one := it.next()) is not None:
        it.add(one, Run(100 + one.arm, 3.0, 20.0, 0.1))
        pairs = {standing.pairs for standing in it.standings() if standing.left}
        assert max(pairs) - min(pairs) <= max(TARGETS) - 1
    assert len({standing.pairs for standing in it.standings() if standing.left}) == 1


def test_the_present_setting_and_auto_are_there_at_the_end_and_slow_plain_decoding_is_measured_once() -> None:
    it = Halving(field())
    played(
        it, lambda one, pair: {"now": 90.0, "auto": 80.0, "plain": 30.0}.get(one.role, 100.0 + one.setting.knobs.budget)
    )
    by_role = {standing.role: standing for standing in it.standings() if standing.role}
    assert by_role["now"].left
    assert by_role["auto"].left
    assert by_role["plain"].pairs == 1
    assert not by_role["plain"].left
    assert by_role["now"].pairs >= 6


def test_plain_decoding_is_the_best_where_drafts_do_not_pay() -> None:
    it = Halving(field())
    played(it, lambda one, pair: {"now": 90.0, "auto": 110.0, "plain": 130.0}.get(one.role, 60.0) + pair)
    verdict = it.verdict()
    assert verdict is not None
    assert it.arms[verdict.best].role == "plain"
    assert verdict.real


def test_the_hopeless_are_out_after_one_pair() -> None:
    it = Halving([arm(1, "now"), arm(50), arm(51)])
    it.add(Next(0, 0), Run(100, 3, 20, 0.1))
    it.add(Next(1, 0), Run(50, 3, 20, 0.1))
    assert [one.left for one in sorted(it.standings(), key=lambda one: one.arm)] == [True, False]


def test_equals_are_noise_and_the_present_setting_stays_the_best_of_them() -> None:
    draw = random.Random(7)
    it = Halving([arm(1, "now"), *(arm(10 + n) for n in range(6))])
    asked = played(it, lambda one, pair: 100 + draw.gauss(0, 2))
    verdict = it.verdict()
    assert verdict is not None
    assert not verdict.real
    assert max(one.pair for one in asked) == TARGETS[-1] - 1, "it is looked at until nothing more can be told"


def test_a_clear_winner_ends_it_early() -> None:
    it = Halving([arm(1, "now"), arm(30)])
    asked = played(it, lambda one, pair: 150.0 + pair if one.setting.knobs.budget == 30 else 100.0 + pair)
    assert max(one.pair for one in asked) + 1 == 8
    verdict = it.verdict()
    assert verdict is not None
    assert (verdict.pairs, verdict.wins, verdict.real) == (8, 8, True)


def test_it_can_be_stopped_at_any_time_and_keeps_what_it_has() -> None:
    it = Halving(field())
    assert it.verdict() is None
    assert it.standings() == []
    for _ in range(5):
        one = it.next()
        assert one is not None
        it.add(one, Run(100.0 + one.arm, 3, 20, 0.1))
    before = it.runs_left()
    assert 0 < before < 200
    it.stop()
    assert it.next() is None
    assert len(it.standings()) == 5
    assert it.verdict() is not None


def test_late_arms_catch_up_on_the_same_pairs() -> None:
    it = Halving([arm(1, "now"), arm(10), arm(11)])
    for _ in range(6):
        one = it.next()
        assert one is not None
        it.add(one, Run(100.0, 3, 20, 0.1))
    it.extend([arm(40), arm(10)])
    assert len(it.arms) == 4, "one that is there already does not come in twice"
    asked = played(it, lambda one, pair: 200.0 if one.setting.knobs.budget == 40 else 100.0)
    assert asked[0] == Next(3, 0)
    verdict = it.verdict()
    assert verdict is not None
    assert it.arms[verdict.best].setting.knobs.budget == 40


def test_late_arms_take_nothing_from_what_is_known_until_they_have_caught_up() -> None:
    it = Halving([arm(1, "now"), arm(10)])
    while (one := it.next()) is not None and one.pair < 4:
        it.add(one, Run(100.0 + 10 * one.arm + one.pair, 3, 20, 0.1))
    it.extend([arm(40)])
    it.add(Next(2, 0), Run(500.0, 3, 20, 0.1))
    verdict = it.verdict()
    assert verdict is not None
    assert (verdict.best, verdict.pairs) == (1, 4)
    by_arm = {one.arm: one for one in it.standings()}
    assert [by_arm[at].pairs for at in range(3)] == [4, 4, 1]
    assert (by_arm[2].now_tok_s, by_arm[2].gain) == (100.0, 4.0), "over the one pair that both have"
    assert [one.arm for one in it.standings()] == [1, 0, 2]


def test_a_prompt_that_says_nothing_is_forgotten_everywhere() -> None:
    it = Halving([arm(1, "now"), arm(10)])
    it.add(Next(0, 0), Run(1, 3, 20, 0.1))
    it.drop(0)
    assert it.standings() == []
    assert it.next() == Next(0, 0)
    with pytest.raises(ValueError, match="pair 3"):
        it.add(Next(0, 3), Run(1, 3, 20, 0.1))
    with pytest.raises(ValueError, match="no settings"):
        Halving([])


def test_the_candidates_of_a_pair() -> None:
    found = arms(Knobs(), LIMITS)
    assert [one.role for one in found][:2] == ["now", "plain"], "the present setting is auto itself"
    assert len({one.setting.knobs for one in found}) == len(found) > 15
    labels = [one.setting.label for one in found]
    assert len(set(labels)) == len(labels)
    assert "tree 15, p_min 0.1" in labels
    assert "chain 15" in labels
    fixed = arms(Knobs(mode="tree", budget=15), LIMITS)
    assert [one.role for one in fixed if one.role] == ["now", "auto", "plain"]
    two = Capabilities(
        "dflash2+mtp", 16, knobs=BLOCK_KNOBS | {"draft"}, parts=(Capabilities("dflash2", 16), Capabilities("mtp", 7))
    )
    several = arms(Knobs(), Limits(two, 4096))
    kinds = {(arm.setting.knobs.draft, arm.setting.knobs.mode) for arm in several}
    assert {(kind, mode) for kind in ("dflash2", "mtp") for mode in ("chain", "tree")} <= kinds
    assert (
        max(
            arm.setting.knobs.budget
            for arm in several
            if (arm.setting.knobs.draft, arm.setting.knobs.mode) == ("mtp", "chain")
        )
        == 6
    )
    assert len({arm.setting.label for arm in several}) == len(several), "labels tell them apart"
    without = arms(Knobs(), Limits(None, 4096))
    assert [one.setting.label for one in without] == ["auto", "plain"]
    text = arms(Knobs(), Limits(Capabilities("text", 16, knobs=frozenset({"budget"})), 4096))
    assert not any(one.setting.knobs.p_min for one in text), "what the drafter does not follow is not tried"


def test_neighbours_of_the_best() -> None:
    best = Knobs(mode="tree", budget=20, p_min=0.1)
    labels = [one.setting.label for one in around(best, LIMITS, positions=600)]
    assert labels == [
        "tree 15, p_min 0.1", "tree 25, p_min 0.1", "tree 20, p_min 0.05", "tree 20, p_min 0.15",
        "tree 20, p_min 0.1, tree T 0.7", "tree 20, p_min 0.1, tree T 1.4", "tree 20, p_min 0.1, window 512",
    ]  # fmt: skip
    assert around(Knobs(mode="ar"), LIMITS, 600) == []
    assert around(Knobs(), Limits(None, 4096), 600) == []
    assert label(Knobs(mode="ar")) == "plain"


def test_window_and_temperature_are_tried_where_they_matter() -> None:
    """Around `auto` too: that is what leads most often."""

    def tried(best: Knobs, drafter: Capabilities, positions: int) -> list[str]:
        return [one.setting.label for one in around(best, Limits(drafter, 4096), positions)]

    block = Capabilities("dflash", 16)
    assert tried(Knobs(), block, 3000) == [
        "auto, tree T 0.7",
        "auto, tree T 1.4",
        "auto, window 512",
        "auto, window 2048",
    ]
    assert tried(Knobs(), block, 512) == ["auto, tree T 0.7", "auto, tree T 1.4"], "a window that holds all of a prompt"
    assert tried(Knobs(), Capabilities("mtp", 4, knobs=BLOCK_KNOBS - {"draft_window"}), 3000) == [
        "auto, tree T 0.7", "auto, tree T 1.4",
    ]  # fmt: skip
    assert tried(Knobs(), Capabilities("text", 16, knobs=frozenset({"budget"})), 3000) == []
    changed = Knobs(mode="tree", budget=20, tree_temperature=0.7, draft_window=512)
    labels = tried(changed, block, 3000)
    assert {"tree 20, window 512", "tree 20, tree T 0.7"} <= {*labels}, "also back to what is usual"
    assert all(one.setting.knobs.policy == "auto" for one in around(Knobs(), Limits(block, 4096), 3000))
    assert not any("tree T" in one for one in tried(Knobs(mode="chain", budget=15), block, 3000))
