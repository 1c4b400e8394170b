"""What-if curves on the demo pair: the exact one equals real runs at ten budgets, the estimate's error is shown."""

from __future__ import annotations

import dataclasses
import sys
from functools import cache

import numpy as np
import pytest

from dflash_core import Engine, Knobs
from dflash_core.conversation import Conversation
from dflash_core.errors import ContextError, DFlashError
from dflash_core.events import StageTimes, StepEvent
from dflash_core.lab.experiment import Laboratory
from dflash_core.lab.whatif import MIN_STEPS, StepTimes, curve, estimate
from dflash_core.record import TurnRecord
from support import demo_pair
from support.compare import NEAR_TIE, gap
from support.grids import full

BUDGETS = (1, 2, 4, 8, 12, 15, 22, 32, 48, 63)
STORY, SUM = "Tell me a story about a fox.", "What is 27 + 58?"
QUESTIONS = (STORY, SUM, "Write a Python function that adds two numbers.", "Hello! What can you do?")


@cache
def engine() -> Engine:
    return demo_pair.new_engine()


def laboratory() -> Laboratory:
    return Laboratory(engine(), engine().target.tokenizer, engine().target.template)


def turn(question: str, knobs: Knobs) -> TurnRecord:
    """One answer, in a conversation of its own; it stays in the session."""
    running = Conversation(engine(), engine().target.tokenizer, engine().target.template).ask(question, knobs)
    for _ in running:
        pass
    assert running.record is not None
    return running.record


def lengths(record: TurnRecord) -> tuple[int, ...]:
    return tuple(len(step.tokens) for step in record.steps)


def answer(record: TurnRecord) -> tuple[int, ...]:
    return tuple(token for event in record.events for token in event.tokens)


def near_tie(record: TurnRecord, real: TurnRecord) -> str:
    """The near-tie that explains why a real run differs from its prediction; fails if there is none."""
    ours, theirs = answer(record), answer(real)
    if ours != theirs:
        at = next(n for n, (a, b) in enumerate(zip(ours, theirs)) if a != b)
        distance = gap(engine().target, record.start.prompt_ids, ours[:at], record.knobs)
        assert distance < NEAR_TIE, f"token {at} differs, and its gap is {distance:.2g}"
        return f"token {at}: the target's gap is {distance:.2g}"
    # The same text from the same position: only the order of the drafter's candidates can differ.
    for step in real.steps:
        rows = np.array(step.drafts.log_probs)
        margins = np.abs(rows[:, :, None] - rows[:, None, :])[:, *np.triu_indices(rows.shape[1], 1)]
        if margins.min() < NEAR_TIE:
            return f"a drafter's margin of {margins.min():.2g}"
    raise AssertionError("the steps differ without a near-tie")


# Each question at one temperature and two budgets of five; with `full` at both and at all.
@pytest.mark.parametrize(
    ("question", "temperature", "budgets"),
    [
        pytest.param(
            question,
            temperature,
            BUDGETS[at // 2 :: 4],
            id=f"{at}-{temperature}",
            marks=pytest.mark.full if at == 2 else (),
        )
        for at, question in enumerate(QUESTIONS)
        for temperature in (0.0, 0.8)
        if (at + bool(temperature)) % 2
    ]
    + [
        pytest.param(question, temperature, BUDGETS, marks=pytest.mark.full, id=f"{at}-{temperature}-all")
        for at, question in enumerate(QUESTIONS)
        for temperature in (0.0, 0.8)
    ],
)
def test_the_exact_curve_equals_real_runs(question: str, temperature: float, budgets: tuple[int, ...]) -> None:
    """Step by step, at a temperature too, because draws depend on seed and position alone."""
    knobs = Knobs(drafting="tree 22", max_tokens=48, temperature=temperature, seed=5)
    record = turn(question, knobs)
    replay = laboratory().replay(record, budgets)
    assert [progress.total for progress in replay][:1] == [len(answer(record)) - 1]
    excused = {}
    for budget, predicted in zip(budgets, replay.acceptance, strict=True):
        real = turn(question, knobs.replace(budget=budget))
        if replay.steps[budget] == lengths(real) and answer(record) == answer(real):
            assert real.report is not None
            assert predicted.length == pytest.approx(real.report.stats.acceptance_length)
            nodes = [len(step.tree.tokens) - 1 for step in real.steps]
            assert predicted.nodes == pytest.approx(np.mean(nodes))
        else:
            excused[budget] = near_tie(record, real)
    sys.stdout.write(f"{question} temperature {temperature}: excused {excused or 'nothing'}\n")
    assert len(excused) <= 1


@pytest.mark.parametrize(
    "changes",
    [{"p_min": 0.2}, full({"chain_seed": True}), {"tree_width": 2, "tree_temperature": 1.5}, {"draft_window": 16}],
)
def test_it_replays_what_the_turn_was_made_with(changes: dict[str, float]) -> None:
    knobs = Knobs(drafting="tree 15", max_tokens=30, **changes)  # type: ignore[arg-type]
    record = turn(STORY, knobs)
    replay = laboratory().replay(record, (6, 15))
    list(replay)
    assert replay.steps[15] == lengths(record)
    assert replay.steps[6] == lengths(turn(STORY, knobs.replace(budget=6)))


@pytest.mark.parametrize("tokens", range(6, 12))
def test_trees_at_the_end_of_an_answer_are_no_deeper_than_it(tokens: int) -> None:
    """However many tokens are left for the last step, none included: then nothing is drafted."""
    record = turn(STORY, Knobs(drafting="tree 15", max_tokens=tokens))
    nodes = np.mean([len(step.tree.tokens) - 1 for step in record.steps])
    replay = laboratory().replay(record, (4, 15))
    list(replay)
    assert replay.acceptance[1].nodes == pytest.approx(nodes)
    assert estimate(record.steps, (15,))[0].nodes == pytest.approx(nodes)


def test_a_chain_and_plain_decoding_can_be_replayed() -> None:
    chain = turn(STORY, Knobs(drafting="chain 15", max_tokens=30))
    replay = laboratory().replay(chain, (5, 15))
    list(replay)
    assert replay.steps[15] == lengths(chain)
    plain = turn(STORY, Knobs(drafting="plain", max_tokens=30))
    as_tree = laboratory().replay(plain, (15,))
    list(as_tree)
    assert as_tree.steps[15] == lengths(turn(STORY, Knobs(drafting="tree 15", max_tokens=30)))


def test_the_estimate_and_its_error() -> None:
    """At the turn's own budget the estimate is exact; at smaller budgets it is too high, and the error is printed."""
    record = turn(STORY, Knobs(drafting="tree 22", max_tokens=32))
    guess = {one.budget: one for one in estimate(record.steps, BUDGETS)}
    replay = laboratory().replay(record, BUDGETS)
    list(replay)
    assert record.report is not None
    assert guess[22].length == pytest.approx(record.report.stats.acceptance_length)
    found = [guess[budget].length for budget in BUDGETS]
    assert found == sorted(found), "a larger tree holds the smaller one"
    errors = {one.budget: guess[one.budget].length / one.length - 1 for one in replay.acceptance}
    sys.stdout.write("the estimate is off by " + ", ".join(f"{b}: {e:+.1%}" for b, e in errors.items()) + "\n")
    assert errors[22] == pytest.approx(0)
    assert max(map(abs, errors.values())) < 0.5


def test_a_larger_budget_is_estimated_from_what_was_drafted() -> None:
    """The candidates of every depth are recorded, so the estimate does not end at the budget that ran."""
    small, large = (turn(STORY, Knobs(drafting=f"tree {budget}", max_tokens=32)) for budget in (4, 40))
    [guess] = estimate(small.steps, (40,))
    assert guess.nodes > 30
    assert guess.length > estimate(small.steps, (4,))[0].length
    assert large.report is not None
    assert guess.length == pytest.approx(large.report.stats.acceptance_length, rel=0.5)


def timed(step: StepEvent) -> StepEvent:
    """The step, with a time that grows with its nodes: what it really took depends on other work of the machine."""
    return dataclasses.replace(step, stages=StageTimes(verify=10.0 + len(step.tree.tokens) / 8))


def test_the_curve_with_measured_steps() -> None:
    record = turn(STORY, Knobs(drafting="tree 22", max_tokens=32))
    costs = StepTimes(map(timed, record.steps))
    alone = curve("estimate", estimate(record.steps, BUDGETS), costs, 22)
    assert alone.best is None, "one budget has been timed, which says nothing of others"
    assert [point.budget for point in alone.points if point.tok_s] == [22]
    for nodes in (4, 63):
        step = turn(STORY, Knobs(drafting=f"tree {nodes}", max_tokens=32)).steps[0]
        for _ in range(MIN_STEPS):
            costs.add(timed(step))
    it = curve("estimate", estimate(record.steps, BUDGETS), costs, 22)
    sources = {point.budget: point.source for point in it.points}
    assert {budget: sources[budget] for budget in (4, 12, 22, 63)} == {
        4: "measured", 12: "interpolated", 22: "measured", 63: "measured",
    }  # fmt: skip
    assert sources[1] == "extrapolated"
    assert it.best is not None
    assert it.best.tok_s == max(point.tok_s or 0 for point in it.points)
    top = it.at(22)
    assert top is not None
    assert top.tok_s == pytest.approx(top.acceptance.length / costs.measured[22] * 1e3)


def test_what_cannot_be_replayed() -> None:
    first = turn(STORY, Knobs(drafting="tree 22", max_tokens=10))
    turn(SUM, Knobs(drafting="tree 22", max_tokens=10))
    with pytest.raises(ContextError, match="no longer in the session"):
        list(laboratory().replay(first, (4,)))
    with pytest.raises(DFlashError, match="no step to replay"):
        laboratory().replay(turn(SUM, Knobs(max_tokens=1)), (4,))
    with pytest.raises(DFlashError, match="drafted nothing"):
        estimate(turn(SUM, Knobs(drafting="plain", max_tokens=5)).steps, (4,))
