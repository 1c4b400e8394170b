"""Plain decoding is timed beside the conversation, which goes on as if nothing had been."""

from __future__ import annotations

import pytest

from dflash_core.conversation import Conversation
from dflash_core.engine import Engine
from dflash_core.events import PrefillEvent
from dflash_core.knobs import Knobs
from dflash_core.lab.experiment import PLAIN_REPEATS, PLAIN_TOKENS, Laboratory, last_prompts, plain_design
from dflash_core.lab.results import plain_of_result
from support import demo_pair


@pytest.fixture(scope="module")
def engine() -> Engine:
    return demo_pair.new_engine()


@pytest.mark.parametrize("whole", [True, False])
def test_the_speed_is_that_of_steps_without_drafts(engine: Engine, whole: bool) -> None:
    engine.reset()
    conversation = Conversation(engine, engine.target.tokenizer, engine.target.template)
    list(conversation.ask("What is p_min?", Knobs(max_tokens=24)))
    length, record = engine.session.length, conversation.turns[0]
    [case] = last_prompts(conversation.messages)
    lab = Laboratory(engine, engine.target.tokenizer, engine.target.template)
    run = lab.experiment(plain_design(case, record.knobs))
    for progress in run:
        if not whole and not progress.doing.startswith("warming"):
            run.cancel()
    speed = plain_of_result(run.result, "timed separately")
    assert engine.session.length == length
    if not whole:
        assert speed is None
        return
    assert speed is not None
    assert (speed.steps, speed.positions) == (PLAIN_REPEATS * (PLAIN_TOKENS - 1), len(record.start.prompt_ids))
    assert 1 < speed.tokens_per_second < 10_000
    list(conversation.ask("And the budget?", Knobs(max_tokens=8)))
    prefill = conversation.turns[1].events[0]
    assert isinstance(prefill, PrefillEvent)
    assert prefill.reused_tokens >= len(record.start.prompt_ids) - 8, "the history had not to be read again"
