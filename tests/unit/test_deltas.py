"""What is said of another setting: by hand-made turns with known speeds and lengths."""

from __future__ import annotations

from dflash_core.knobs import Knobs
from dflash_core.record import TurnRecord
from dflash_tui.figures import deltas
from dflash_tui.figures.deltas import measured, on_the_way, stretches
from support.turns import step_of, tree_of, turn_of

LONG = tree_of((0, 0), (1, 0), (2, 0), accepted=(0, 1, 2, 3))  # four tokens
SHORT = tree_of((0, 0), accepted=(0, 1))  # two


def turn(tree: object, knobs: Knobs, *, steps: int = 5, step_s: float = 0.02, after: Knobs | None = None):
    ran = [step_of(tree, knobs=knobs)] * steps  # type: ignore[arg-type]
    if after is not None:
        ran += [step_of(LONG, knobs=after)] * steps
    return turn_of(ran, knobs=knobs, step_s=step_s)


def against_earlier(record: TurnRecord, earlier: list[TurnRecord]) -> str:
    """The turn as a measure, if it is one, beside those of the earlier ones that are."""
    mine = measured(record)
    return deltas.against_earlier(mine, filter(None, map(measured, reversed(earlier)))) if mine else ""


def test_against_the_last_turn_that_ran_otherwise() -> None:
    first = turn(SHORT, Knobs(), step_s=0.02)  # 100 tok/s
    same = turn(LONG, Knobs(), step_s=0.01)
    wide = turn(LONG, Knobs(budget=40, p_min=0.1), step_s=0.02)  # 200 tok/s
    assert against_earlier(wide, [first]) == "+100 tok/s, accept +2.00 against budget 22, p_min 0.00"
    assert against_earlier(first, [wide]) == "−100 tok/s, accept −2.00 against budget 40, p_min 0.10"
    assert against_earlier(same, [first]) == "", "the same setting is no comparison"
    assert against_earlier(same, [wide, first]) == "+200 tok/s, accept +0.00 against budget 40, p_min 0.10"
    assert against_earlier(wide, []) == ""


def test_what_matters_not_for_speed_is_no_other_setting() -> None:
    first = turn(SHORT, Knobs(seed=1, max_tokens=9))
    assert against_earlier(turn(LONG, Knobs(seed=2)), [first]) == ""


def test_many_changes_are_counted() -> None:
    other = Knobs(budget=4, p_min=0.2, tree_width=2, tree_temperature=1.5, chain_seed=True)
    line = against_earlier(turn(LONG, Knobs()), [turn(SHORT, other)])
    assert line.endswith("against budget 4, p_min 0.20, tree_temperature 1.50 and 2 more")


def test_a_turn_beside_itself() -> None:
    record = turn(SHORT, Knobs(), steps=5, after=Knobs(budget=40))
    one, two = stretches(record)
    assert (one.first, one.steps, one.tokens) == (1, 5, 10)
    assert (two.first, two.steps, two.tokens) == (6, 5, 20)
    assert on_the_way(record) == ["+100 tok/s, accept +2.00 since step 6, with budget 40"]
    assert on_the_way(turn(SHORT, Knobs())) == []
    assert against_earlier(record, [turn(LONG, Knobs(mode="ar"))]) == "", "it ran with two settings"
    plain = turn(LONG, Knobs(mode="ar"))
    assert against_earlier(plain, [turn(SHORT, Knobs()), record]).endswith("against mode auto")


def test_a_turn_without_steps() -> None:
    empty = turn_of([])
    assert stretches(empty) == ()
    assert against_earlier(empty, [turn(LONG, Knobs(mode="ar"))]) == ""
