"""Plain decoding is timed beside the conversation, which goes on as if nothing had been."""

from __future__ import annotations

import pytest

from dflash_core.conversation import Conversation
from dflash_core.engine import Engine
from dflash_core.events import PrefillEvent
from dflash_core.knobs import Knobs
from dflash_core.lab.laboratory import Laboratory
from dflash_core.lab.plain import FEWEST_STEPS, TIMED_STEPS, WARM_STEPS
from support import demo_pair


@pytest.fixture(scope="module")
def engine() -> Engine:
    return demo_pair.new_engine()


def test_the_speed_is_that_of_steps_without_drafts(engine: Engine) -> None:
    conversation = Conversation(engine, engine.target.tokenizer, engine.target.template)
    list(conversation.ask("What is p_min?", Knobs(max_tokens=24)))
    length = engine.session.length
    record = conversation.turns[0]
    run = Laboratory(engine, engine.target.tokenizer, engine.target.template).time_plain(record)
    progress = list(run)
    assert len(progress) == WARM_STEPS + TIMED_STEPS
    assert run.speed is not None
    assert (run.speed.steps, run.speed.positions) == (TIMED_STEPS, len(record.start.prompt_ids))
    assert 1 < run.speed.tokens_per_second < 10_000
    assert engine.session.length == length
    list(conversation.ask("And the budget?", Knobs(max_tokens=8)))
    prefill = conversation.turns[1].events[0]
    assert isinstance(prefill, PrefillEvent)
    assert prefill.reused_tokens >= len(record.start.prompt_ids) - 8, "the history had not to be read again"


def test_a_run_that_is_cut_short_says_nothing(engine: Engine) -> None:
    conversation = Conversation(engine, engine.target.tokenizer, engine.target.template)
    list(conversation.ask("hi", Knobs(max_tokens=4)))
    length = engine.session.length
    run = Laboratory(engine, engine.target.tokenizer, engine.target.template).time_plain(conversation.turns[0])
    parts = iter(run)
    for _ in range(FEWEST_STEPS // 2):
        next(parts)
    parts.close()  # type: ignore[attr-defined]
    assert run.speed is None
    assert engine.session.length == length
