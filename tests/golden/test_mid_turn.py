"""Knobs changed while an answer is written: the answer stays the target's own, and each step reports its knobs."""

from __future__ import annotations

import itertools
import statistics

import pytest

from dflash_core.conversation import Conversation
from dflash_core.engine import Engine
from dflash_core.events import StepEvent
from dflash_core.knobs import LIVE, SPECS, Knobs
from dflash_core.record import TurnRecord
from support import demo_pair

QUESTION = "Write a Python function that adds the even numbers of a list."
CHANGES = [
    Knobs(drafting="tree 40", p_min=0.1),
    Knobs(drafting="plain"),
    Knobs(drafting="chain 22", draft_window=8),
    Knobs(drafting="tree 3", tree_width=2, chain_seed=True),
    Knobs(drafting="auto", tree_temperature=2.0),
]


@pytest.fixture(scope="module")
def engine() -> Engine:
    return demo_pair.new_engine()


def answer(engine: Engine, knobs: Knobs, changes: dict[int, Knobs]) -> TurnRecord:
    """One turn that goes on with `changes[n]` once it has n tokens."""
    conversation = Conversation(engine, engine.target.tokenizer, engine.target.template)
    turn = conversation.ask(QUESTION, knobs)
    tokens = 0
    for piece in turn:
        tokens += len(piece.event.tokens)
        if tokens in changes:
            turn.change(changes[tokens])
    [record] = conversation.turns
    assert record == turn.record
    return record


def tokens_of(record: TurnRecord) -> list[int]:
    return [token for event in record.events for token in event.tokens]


def test_any_change_of_the_speculation_leaves_the_answer_alone(engine: Engine) -> None:
    plain = answer(engine, Knobs(drafting="plain", max_tokens=40), {})
    turn = answer(engine, Knobs(drafting="plain", max_tokens=40), dict(zip(range(1, 400), itertools.cycle(CHANGES))))
    assert tokens_of(turn) == tokens_of(plain)
    assert len({step.mode for step in turn.steps}) == 3
    for step in turn.steps:
        assert step.knobs.max_tokens == 40, "only a new turn can take that"
        assert any(all(getattr(step.knobs, n) == getattr(one, n) for n in LIVE) for one in CHANGES)
        assert step.knobs.mode in (step.mode, "auto")  # which decides for itself, by what steps have taken here
        assert len(step.tree.tokens) <= step.knobs.budget + 1


def test_sampling_knobs_count_from_the_next_step_on(engine: Engine) -> None:
    """The same change at the same token gives the same answer, however the tokens were drafted."""
    cold, hot = (
        Knobs(drafting="tree 22", max_tokens=36, seed=3),
        Knobs(drafting="tree 22", max_tokens=36, seed=3, temperature=2.0, top_k=50, presence_penalty=1),
    )
    unchanged = answer(engine, cold, {})
    ends = list(itertools.accumulate(len(event.tokens) for event in unchanged.events))
    at = next(end for end in ends if end >= 12)
    drafted = answer(engine, cold, {at: hot})
    plain = answer(engine, cold.replace(mode="plain"), {at: hot.replace(mode="plain")})
    assert tokens_of(drafted) == tokens_of(plain)
    assert tokens_of(drafted)[:at] == tokens_of(unchanged)[:at]
    assert tokens_of(drafted)[at:] != tokens_of(unchanged)[at:]
    assert [step.knobs.temperature for step in drafted.steps].count(2.0) == len(drafted.steps) - ends.index(at)


def test_a_change_before_the_first_step_counts_for_it(engine: Engine) -> None:
    turn = answer(engine, Knobs(drafting="auto", max_tokens=12), {1: Knobs(drafting="auto up to 2")})
    assert {step.knobs.budget for step in turn.steps} == {2}
    assert turn.knobs.budget == 22
    assert turn.report is not None
    assert turn.report.knobs.budget == 22


def test_stage_times_add_up_to_the_wall_time(engine: Engine) -> None:
    turn = answer(engine, Knobs(max_tokens=64), {})
    # The median of the steps: any single one may be delayed between its last stage and the reading of the clock.
    steps = [(piece.event.stages.total, piece.at) for piece in turn.pieces if isinstance(piece.event, StepEvent)]
    shares = [total / ((at - before) * 1e3) for (_, before), (total, at) in itertools.pairwise(steps)]
    assert len(shares) > 5
    assert statistics.median(shares) == pytest.approx(1, abs=0.05)
    assert all(step.stages.host >= 0 for step in turn.steps)


def test_candidates_are_recorded_as_the_tree_took_them(engine: Engine) -> None:
    for mode in ("tree", "chain"):
        turn = answer(engine, Knobs(max_tokens=20, tree_width=6).replace(mode=mode), {})
        for step in turn.steps:
            assert isinstance(step, StepEvent)
            assert len(step.drafts.tokens) == 15
            assert {len(row) for row in step.drafts.tokens} == {6}
            for token, depth, prob in zip(step.tree.tokens[1:], step.tree.depths[1:], step.tree.probs[1:]):
                assert token in step.drafts.tokens[depth - 1]
                assert 0 < prob <= 1
            assert step.bonus is not None
            if step.stop is None:
                assert step.tokens[-1] == step.bonus


def test_the_table_says_when_a_change_applies() -> None:
    assert {spec.name for spec in SPECS if spec.applies == "next step"} == LIVE
    guards = {"thinking_budget", "loop_guard", "answer_loop_guard", "end_in_thinking"}
    reasoning = {"thinking", "reasoning_effort", "preserve_thinking"}
    assert {spec.name for spec in SPECS} - LIVE == {
        "seed",
        "max_tokens",
        "ignore_eos",
        *reasoning,
        *guards,
        "attention_window",
    }
