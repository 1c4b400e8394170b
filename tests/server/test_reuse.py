"""A second turn reads what is new, although other prompts came between: counts are exact on the demo pair."""

from __future__ import annotations

from typing import Any

import pytest

from support import demo_pair
from support.serving import Running, running

TOOL = {
    "name": "read_file", "description": "Reads a file. " * 8,
    "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
}  # fmt: skip
SYSTEM = "You are an agent that works in a folder. " * 12
QUESTION = "What is 12 plus 7?"


def read(usage: Any) -> int:
    return int(usage.input_tokens)


@pytest.mark.parametrize("thinking", ["disabled", "adaptive"])
@pytest.mark.parametrize("tools", [[], [TOOL]])
def test_an_agent_s_second_turn_reads_what_is_new(tools: list[Any], thinking: str) -> None:
    with running(demo_pair.new_engine()) as server:
        client = server.anthropic()

        def turn(messages: list[Any], system: str = SYSTEM, tools: list[Any] = tools) -> Any:
            more: dict[str, Any] = {"tools": tools} if tools else {}
            return client.messages.create(
                model="m", max_tokens=48, messages=messages, system=system, thinking={"type": thinking},
                extra_body={"dflash": {"mode": "plain"}}, **more,
            )  # fmt: skip

        first_prompt = [{"role": "user", "content": QUESTION}]
        first = turn(first_prompt)
        stable = _stable(server, first_prompt, tools, thinking)
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


def _stable(server: Running, messages: list[Any], tools: list[Any], thinking: str) -> int:
    """How much of the prompt the next one begins with, as the prompt's own maker says."""
    import json

    from dflash_tui.server import anthropic
    from dflash_tui.server.body import decode

    request = {
        "model": "m", "max_tokens": 48, "messages": messages, "system": SYSTEM, "thinking": {"type": thinking},
        **({"tools": tools} if tools else {}),
    }  # fmt: skip
    asked = anthropic.asked_of(decode(json.dumps(request).encode(), anthropic.MessagesRequest))
    return server.service.preparer.prepare(asked).prompt.stable


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
