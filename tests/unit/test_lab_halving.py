"""Sequential halving and what it tries: made-up speeds, no model, milliseconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from dflash_core.drafters.capabilities import BLOCK_KNOBS, Capabilities
from dflash_core.knobs import Knobs
from dflash_core.lab.candidates import arms, around, label
from dflash_core.lab.grid import Arm
from dflash_core.lab.schedule import ROUND_TOKENS, ROUNDS, Schedule, Slot
from dflash_core.limits import Limits

LIMITS = Limits(Capabilities("dflash", 16), 4096, tree_width=8)
FIELD = [
    Arm("now", Knobs(), "now"), Arm("auto", Knobs(), "auto"), Arm("plain", Knobs(), "plain"),
    *(Arm(f"{n}", Knobs()) for n in range(13)),
]  # fmt: skip


def by(speed: Callable[[int], float]) -> Callable[[Sequence[int]], list[int]]:
    return lambda its: sorted(its, key=lambda at: -speed(at))


def played(it: Schedule, speed: Callable[[int], float], tokens: int = 96) -> list[Slot]:
    """Run everything that is asked for."""
    asked = []
    while (slot := it.next(by(speed))) is not None:
        asked.append(slot)
        it.done(slot, tokens)
    return asked


def test_the_best_stays_and_none_is_dropped_before_it_has_every_prompt() -> None:
    """Regression: arms were dropped after one short answer."""
    it = Schedule(FIELD, prompts=4, halving=True)
    asked = played(it, lambda at: at)
    assert it.left == [0, 1, 14, 15], "the present setting and auto stay; the others are halved each round"
    runs = Counter(slot.setting for slot in asked)
    assert set(runs.values()) == {4, 8, 12}
    for at in range(len(FIELD)):
        assert {slot.prompt for slot in asked if slot.setting == at} == {0, 1, 2, 3}
    assert len(asked) < len(FIELD) * 4 * ROUNDS * 0.7


def test_runs_are_interleaved_by_prompt() -> None:
    asked = played(Schedule(FIELD[:5], prompts=2, halving=True), lambda at: at)
    for block in range(0, 20, 5):
        assert len({(slot.prompt, slot.repeat) for slot in asked[block : block + 5]}) == 1


def test_short_answers_are_repeated_before_a_decision() -> None:
    it = Schedule(FIELD[:6], prompts=4, halving=True)
    while len(it.left) == 6:
        slot = it.next(by(float))
        assert slot is not None
        it.done(slot, 16)
        first = sum(16 for _ in range(4))
    assert len({slot for slot in it._ran if slot.setting == 2}) * 16 >= ROUND_TOKENS > first


def test_the_briefest_answers_end_too() -> None:
    assert len(played(Schedule(FIELD[:6], prompts=4, halving=True), lambda at: at, tokens=1)) < 6 * 4 * 3 * ROUNDS


def test_a_prompt_that_says_nothing_is_left_out_and_late_arms_catch_up() -> None:
    it = Schedule(FIELD[:4], prompts=2, halving=True)
    for _ in range(4):
        slot = it.next(by(float))
        assert slot is not None
        it.done(slot, 96)
    it.exclude(1)
    it.extend([Arm("late", Knobs())])
    asked = played(it, lambda at: at)
    assert {slot.prompt for slot in asked} == {0}
    assert asked[0] == Slot(4, 0, 0)
    assert 4 in it.left


def test_a_grid_runs_everything_once() -> None:
    asked = played(Schedule(FIELD[:3], prompts=2, repeats=2), float)
    assert len(set(asked)) == len(asked) == 12


def test_the_candidates_of_a_pair() -> None:
    found = arms(Knobs(), LIMITS)
    assert [one.role for one in found][:2] == ["now", "plain"], "the present setting is auto itself"
    assert len({one.knobs for one in found}) == len(found) > 15
    labels = [one.label for one in found]
    assert len(set(labels)) == len(labels)
    assert "tree 15, p_min 0.1" in labels
    assert "chain 15" in labels
    fixed = arms(Knobs(drafting="tree 15"), LIMITS)
    assert [one.role for one in fixed if one.role] == ["now", "auto", "plain"]
    two = Capabilities(
        "dflash2+mtp", 16, knobs=BLOCK_KNOBS | {"draft"}, parts=(Capabilities("dflash2", 16), Capabilities("mtp", 7))
    )
    several = arms(Knobs(), Limits(two, 4096))
    kinds = {(arm.knobs.draft, arm.knobs.mode) for arm in several}
    assert {(kind, mode) for kind in ("dflash2", "mtp") for mode in ("chain", "tree")} <= kinds
    assert max(arm.knobs.budget for arm in several if (arm.knobs.draft, arm.knobs.mode) == ("mtp", "chain")) == 6
    assert len({arm.label for arm in several}) == len(several), "labels tell them apart"
    without = arms(Knobs(), Limits(None, 4096))
    assert [one.label for one in without] == ["auto", "plain"]
    text = arms(Knobs(), Limits(Capabilities("text", 16, knobs=frozenset()), 4096))
    assert not any(one.knobs.p_min for one in text), "what the drafter does not follow is not tried"


def test_neighbours_of_the_best() -> None:
    best = Knobs(drafting="tree 20", p_min=0.1)
    labels = [one.label for one in around(best, LIMITS, positions=600)]
    assert labels == [
        "tree 15, p_min 0.1", "tree 25, p_min 0.1", "tree 20, p_min 0.05", "tree 20, p_min 0.15",
        "tree 20, p_min 0.1, tree T 0.7", "tree 20, p_min 0.1, tree T 1.4", "tree 20, p_min 0.1, window 512",
    ]  # fmt: skip
    assert around(Knobs(drafting="plain"), LIMITS, 600) == []
    assert around(Knobs(), Limits(None, 4096), 600) == []
    assert label(Knobs(drafting="plain")) == "plain"


def test_window_and_temperature_are_tried_where_they_matter() -> None:
    """Around `auto` too: that is what leads most often."""

    def tried(best: Knobs, drafter: Capabilities, positions: int) -> list[str]:
        return [one.label for one in around(best, Limits(drafter, 4096), positions)]

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
    assert tried(Knobs(), Capabilities("text", 16, knobs=frozenset()), 3000) == []
    changed = Knobs(drafting="tree 20", tree_temperature=0.7, draft_window=512)
    labels = tried(changed, block, 3000)
    assert {"tree 20, window 512", "tree 20, tree T 0.7"} <= {*labels}, "also back to what is usual"
    assert all(one.knobs.drafting == "auto" for one in around(Knobs(), Limits(block, 4096), 3000))
    assert not any("tree T" in one for one in tried(Knobs(drafting="chain 15"), block, 3000))
