"""A second turn reads what is new, although other prompts came between: counts are exact on the demo pair."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dflash_core.snapshots.store import SnapshotStore
from dflash_core.text.prompt import Prompt
from dflash_tui.server import anthropic
from dflash_tui.server.body import decode
from support import demo_pair
from support.grids import full
from support.serving import Running, running

TOOL = {
    "name": "read_file", "description": "Reads a file. " * 8,
    "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
}  # fmt: skip
SYSTEM = "You are an agent that works in a folder. " * 12
STATES = 24 << 20
QUESTION = "What is 12 plus 7?"


def read(usage: Any) -> int:
    return int(usage.input_tokens)


@pytest.mark.parametrize(
    ("tools", "thinking"),
    [([], "adaptive"), ([TOOL], "disabled"), full([], "disabled"), full([TOOL], "adaptive")],
)
def test_an_agent_s_second_turn_reads_what_is_new(tools: list[Any], thinking: str) -> None:
    with running(demo_pair.new_engine()) as server:
        client = server.anthropic()

        def turn(messages: list[Any], system: str = SYSTEM, tools: list[Any] = tools) -> Any:
            more: dict[str, Any] = {"tools": tools} if tools else {}
            return client.messages.create(
                model="m", max_tokens=16, messages=messages, system=system, thinking={"type": thinking},
                extra_body={"dflash": {"mode": "plain"}}, **more,
            )  # fmt: skip

        first_prompt = [{"role": "user", "content": QUESTION}]
        first = turn(first_prompt)
        stable = _prompt(server, first_prompt, tools, thinking).stable
        # The requests that agents make beside: a title, of another system message, without tools.
        title = turn([{"role": "user", "content": "Name this chat: " + QUESTION}], "You name chats.", [])
        assert title.usage.cache_read_input_tokens < 8
        answer = [block.model_dump(exclude_none=True) for block in first.content]
        second_prompt = [*first_prompt, {"role": "assistant", "content": answer}, {"role": "user", "content": "And 3?"}]
        second = turn(second_prompt)
        total = second.usage.input_tokens + second.usage.cache_read_input_tokens
        assert second.usage.cache_read_input_tokens == stable
        assert read(second.usage) == total - stable < 80 < stable
        # A conversation of its own, as of a sub-agent, shares system message and tools.
        fresh = turn([{"role": "user", "content": "Tell me about red."}])
        if tools:
            assert fresh.usage.cache_read_input_tokens > 0.8 * stable


def _prompt(server: Running, messages: list[Any], tools: list[Any], thinking: str) -> Prompt:
    """The prompt, and how much of it others begin with, as its own maker says."""
    request = {
        "model": "m", "max_tokens": 48, "messages": messages, "system": SYSTEM, "thinking": {"type": thinking},
        **({"tools": tools} if tools else {}),
    }  # fmt: skip
    asked = anthropic.asked_of(decode(json.dumps(request).encode(), anthropic.MessagesRequest))
    return server.service.preparer.prepare(asked, server.service.served.defaults).prompt


def test_side_requests_do_not_push_out_what_a_session_begins_with() -> None:
    """Memory for the states of two turns; each turn is followed by a title request, twice by a sub-agent."""
    engine = demo_pair.new_engine(states=SnapshotStore(STATES, 64))
    with running(engine) as server:
        client = server.anthropic()
        store = engine.snapshots.store if engine.snapshots else None
        assert store is not None

        def turn(messages: list[Any], system: str = SYSTEM, tools: Any = (TOOL,)) -> Any:
            return client.messages.create(
                model="m", max_tokens=8, messages=messages, system=system, thinking={"type": "disabled"},
                extra_body={"dflash": {"mode": "plain"}}, tools=list(tools),
            )  # fmt: skip

        history: list[Any] = [{"role": "user", "content": QUESTION}]
        stable = 0
        for number in range(5):
            answer = turn(history)
            prompt = _prompt(server, history, [TOOL], "disabled")
            assert answer.usage.cache_read_input_tokens == stable
            assert answer.usage.input_tokens == len(prompt.ids) - stable
            stable = prompt.stable
            turn([{"role": "user", "content": f"Name chat {number}: {QUESTION * 4}"}], f"{number} names chats.", ())
            if number % 2:
                other = [{"role": "user", "content": f"Tell me about {number}."}]
                head = _prompt(server, other, [TOOL], "disabled").head
                assert turn(other).usage.cache_read_input_tokens == head > 300
            content = [block.model_dump(exclude_none=True) for block in answer.content]
            history += [{"role": "assistant", "content": content}, {"role": "user", "content": f"And {number}?"}]
            assert store.nbytes <= STATES
        assert len(store) < 10, "some were dropped"


def test_a_billing_line_that_changes_costs_nothing() -> None:
    with running(demo_pair.new_engine()) as server:
        client = server.anthropic()

        def turn(number: int) -> Any:
            billing = f"x-anthropic-billing-header: cc_version=1.2; cch={number};"
            system: Any = [{"type": "text", "text": text} for text in (billing, SYSTEM)]
            return client.messages.create(
                model="m", max_tokens=4, system=system, messages=[{"role": "user", "content": QUESTION}]
            ).usage

        first, second = turn(1), turn(2)
        assert second.cache_read_input_tokens > 0.9 * first.input_tokens
        assert second.input_tokens + second.cache_read_input_tokens == first.input_tokens
