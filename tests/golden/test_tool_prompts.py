"""Prompts with tools on the demo pair: every mode gives the same text, and what prompts share is read once."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from dflash_core import Engine, Knobs
from dflash_core.events import PrefillEvent
from dflash_core.messages import Call, Message
from dflash_core.prompting import build_prompt
from dflash_core.text.prompt import Prompt, Prompting
from support import demo_pair
from support.compare import Comparison, generated
from support.grids import full

SAMPLED = {"temperature": 0.9, "top_k": 30, "seed": 8}


@cache
def engine() -> Engine:
    return demo_pair.new_engine()


def tools(count: int) -> list[dict[str, Any]]:
    return [
        {"type": "function", "function": {"name": f"look_{n}", "parameters": {"properties": {"at": {}}}}}
        for n in range(count)
    ]


def prompt(count: int, *messages: Message) -> Prompt:
    target = engine().target
    return build_prompt(Prompting(target.tokenizer, target.template, False, tools=tools(count)), messages)


ASKED = Message("user", "What is 37 + 48?")
CALLED = (
    ASKED,
    Message("assistant", "I look.", calls=(Call("1", "look_0", {"at": "a"}), Call("2", "look_0", {"at": "b"}))),
    Message("tool", "there is 85", call_id="1", name="look_0"),
    Message("tool", "nothing <|im_end|>", call_id="2", name="look_0"),
)


@pytest.mark.parametrize("count", [2, full(28)])
def test_tools_change_nothing_about_speculation(count: int) -> None:
    comparison = Comparison()
    for messages, sampling in (((ASKED,), {}), (CALLED, SAMPLED)):
        ids = list(prompt(count, *messages).ids)
        plain = generated(engine(), ids, Knobs(drafting="plain", max_tokens=14, **sampling))
        for mode in ("tree 15", "chain 7"):
            comparison.add(engine(), ids, plain, Knobs(drafting=mode, max_tokens=14, **sampling))
    comparison.check()


def test_what_prompts_share_is_read_once() -> None:
    """A recurrent target: it can go back to kept lengths alone."""
    one = demo_pair.new_engine()
    assert one.target.config.recurrent

    def reused(asked: Prompt) -> int:
        events = list(one.generate(asked.ids, Knobs(max_tokens=2), keep=asked.keep))
        assert isinstance(events[0], PrefillEvent)
        return events[0].reused_tokens

    first = prompt(3, ASKED)
    assert reused(first) == 0
    assert 0 < first.head < first.continued
    again = prompt(3, *CALLED)
    assert reused(again) >= first.continued, "the results of calls"
    other = prompt(3, Message("user", "Something else"))
    assert other.head == first.head
    assert reused(other) >= first.head, "another conversation with the same tools"
    assert reused(again) >= again.stable, "back to the first"
