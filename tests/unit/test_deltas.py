"""Comparisons between settings, on hand-made turns with known speeds and lengths."""

from __future__ import annotations

from dataclasses import replace

from dflash_core.knobs import Knobs
from dflash_core.record import TurnRecord
from dflash_tui.application.conversations import comparing
from dflash_tui.application.conversations.comparing import along_the_steps, measured
from support.turns import step_of, tree_of, turn_of

LONG = tree_of((0, 0), (1, 0), (2, 0), accepted=(0, 1, 2, 3))  # four tokens
SHORT = tree_of((0, 0), accepted=(0, 1))  # two


def turn(
    tree: object,
    knobs: Knobs,
    *,
    steps: int = 5,
    step_s: float = 0.02,
    after: Knobs | None = None,
    prompt: str = "Why?",
):
    ran = [step_of(tree, knobs=knobs)] * steps  # type: ignore[arg-type]
    if after is not None:
        ran += [step_of(LONG, knobs=after)] * steps
    return turn_of(ran, knobs=knobs, step_s=step_s, prompt=prompt)


def against_earlier(record: TurnRecord, earlier: list[TurnRecord]) -> str:
    """The comparison of a turn with the earlier ones; empty if the turn cannot be measured."""
    mine = measured(record)
    return comparing.against_earlier(mine, filter(None, map(measured, reversed(earlier)))) if mine else ""


def test_the_same_prompt_over_the_same_text() -> None:
    slow = turn(LONG, Knobs(), steps=30, step_s=0.04)  # 100 tok/s
    fast = turn(
        LONG, Knobs(drafting="auto up to 40", p_min=0.1), steps=60, step_s=0.02
    )  # 200 tok/s, and it went on for longer
    found = "200 tok/s, +100 % (10 of 10 parts) against drafting auto, p_min 0.00, same 120 tokens"
    assert against_earlier(fast, [slow]) == found
    found = "100 tok/s, −50 % (10 of 10 parts) against drafting auto up to 40, p_min 0.10, same 120 tokens"
    assert against_earlier(slow, [fast]) == found


def test_other_text_says_nothing() -> None:
    """Speeds on different texts differ whatever the setting, so they are not compared."""
    slow = turn(LONG, Knobs(), steps=30, step_s=0.04)
    other = turn(LONG, Knobs(drafting="auto up to 40"), steps=30, step_s=0.02, prompt="And now?")
    assert against_earlier(other, [slow]) == ""
    answered_otherwise = turn(SHORT, Knobs(drafting="auto up to 40"), steps=60, step_s=0.02)
    assert against_earlier(answered_otherwise, [slow]) == "", "the texts part after a few tokens"
    assert against_earlier(turn(LONG, Knobs(drafting="auto up to 40"), steps=10), [slow]) == "", "too little to tell"
    assert against_earlier(turn(LONG, Knobs(seed=2), steps=30, step_s=0.02), [slow]) == "", "the same setting"
    assert against_earlier(slow, []) == ""


def test_what_the_parts_do_not_agree_on_is_noise() -> None:
    uneven = turn(LONG, Knobs(), steps=30, step_s=0.02)
    pieces = list(uneven.pieces)
    at = pieces[0].at
    for place, piece in enumerate(pieces[1:], 1):
        at += 0.01 if place // 3 % 2 else 0.031
        pieces[place] = replace(piece, at=at)
    uneven = replace(uneven, pieces=tuple(pieces))
    even = turn(LONG, Knobs(drafting="auto up to 40"), steps=30, step_s=0.02)
    line = against_earlier(even, [uneven])
    assert line == "no difference beyond noise against drafting auto, same 120 tokens"


def test_many_changes_are_counted() -> None:
    other = Knobs(drafting="auto up to 4", p_min=0.2, tree_width=2, tree_temperature=1.5, chain_seed=True)
    line = against_earlier(turn(LONG, Knobs(), steps=30), [turn(LONG, other, steps=30, step_s=0.03)])
    assert line.endswith("against drafting auto up to 4, p_min 0.20, tree_temperature 1.50 and 2 more, same 120 tokens")


def test_a_turn_that_was_changed_on_the_way() -> None:
    record = turn(SHORT, Knobs(), steps=5, after=Knobs(drafting="auto up to 40"))
    assert along_the_steps(record) == ["drafting auto up to 40 from step 6 on"]
    assert along_the_steps(turn(SHORT, Knobs())) == []
    assert against_earlier(record, [turn(LONG, Knobs(drafting="plain"))]) == "", "it ran with two settings"


def test_a_turn_without_steps() -> None:
    empty = turn_of([])
    assert along_the_steps(empty) == []
    assert against_earlier(empty, [turn(LONG, Knobs(drafting="plain"))]) == ""
