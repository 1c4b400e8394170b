"""A card that fills up in mid-turn: the turn ends with what was written, says who holds what and what would help, and
the next one works."""

from __future__ import annotations

from typing import Any

import pytest

from dflash_core import Knobs
from dflash_core.conversation import Conversation
from dflash_core.demo import demo_draft_path, demo_target_path
from dflash_core.engine import Engine, load_pair
from dflash_core.errors import Code, OutOfMemoryError
from dflash_core.fits import MemoryPlan, RanOutError, Remedy, Setup, ran_out
from dflash_core.memory import OTHERS, Component, MemoryBreakdown
from dflash_tui.application import advice

GIB = 1 << 30
KNOBS = Knobs(drafting="tree 3", temperature=0.0, max_tokens=12, ignore_eos=True)


def fail_at(engine: Engine, call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pass number `call` over a tree fail with full memory."""
    verify, calls = engine.session.verify, iter(range(1000))

    def full(*args: Any) -> Any:
        if next(calls) == call:
            raise OutOfMemoryError("the GPU has no memory left for a tree", code=Code.DEVICE_FULL)
        return verify(*args)

    monkeypatch.setattr(engine.session, "verify", full)


def test_the_turn_keeps_what_was_written_and_the_next_one_works(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = load_pair(demo_target_path(), demo_draft_path(), context_length=512)
    talk = Conversation(engine, engine.target.tokenizer, engine.target.template)
    fail_at(engine, 2, monkeypatch)
    turn = talk.ask("Count to three.", KNOBS)
    with pytest.raises(RanOutError) as ended:
        list(turn)
    message = str(ended.value)
    assert "\n" not in message
    assert message.startswith("this machine is full, ")
    assert "target " in message
    assert "ask again" in message, "it is not: everything fits"
    assert ended.value.code is Code.DEVICE_FULL
    assert turn.report is not None
    assert turn.text
    assert [one.role for one in talk.messages] == ["user", "assistant"]
    assert talk.messages[-1].content == turn.text
    after = talk.ask("And back?", KNOBS)
    list(after)
    assert after.report is not None
    assert len(after.report.tokens) == 12
    assert after.report.stop == "max tokens"


def test_who_holds_what_and_what_would_help() -> None:
    parts = (Component("target", 16 * GIB, measured=15 * GIB), Component(OTHERS, 6 * GIB), Component("scratch", 0))
    held = MemoryBreakdown("A card", parts, 24 * GIB, GIB // 2)
    setup, shorter = Setup(131_072), Setup(65_536, "q8_0")
    plan = MemoryPlan("A card", setup, parts[:1], 14 * GIB, {}, (Remedy(shorter, 13 * GIB, 3 * GIB),))
    error = ran_out(plan, held)
    assert str(error) == (
        "A card is full, 512.0 MiB of 24.0 GiB free: target 15.0 GiB, other processes 6.0 GiB; "
        "2.0 GiB have to be freed, or take less"
    )
    assert advice.on_command_line(error).endswith("(--kv q8_0 --context 65536, --context N takes less)")
    assert "start it with --kv q8_0 --context 65536" in advice.in_app(error)
