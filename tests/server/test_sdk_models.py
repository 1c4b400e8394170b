"""Answers hold every field that the types of the official clients require; the clients themselves do not check that."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import TypeAdapter

from support.scripted import ScriptedEngine
from support.serving import Running, running

TOOL = {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}
CALL = "<tool_call>\n<function=look>\n<parameter=at>\nhome\n</parameter>\n</function>\n</tool_call>"
CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hello"}], "tools": [{"type": "function", "function": TOOL}],
    "logprobs": True, "top_logprobs": 2,
}  # fmt: skip
RESPONSE: dict[str, Any] = {"input": "Hello", "tools": [TOOL | {"type": "function"}]}
MESSAGE: dict[str, Any] = {
    "messages": CHAT["messages"], "model": "m", "max_tokens": 90, "thinking": {"type": "enabled", "budget_tokens": 50},
    "tools": [{"name": "look", "input_schema": TOOL["parameters"]}],
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(ScriptedEngine(lambda prompt: f"I think.\n</think>\n\nI see.\n\n{CALL}")) as found:
        yield found


def test_what_lists_and_whole_answers_hold(server: Running) -> None:
    """Regressions: cache_write_tokens of the Responses API's usage, lifecycle of Anthropic's models."""
    from anthropic.types import Message, MessageTokensCount, ModelInfo
    from openai.types import Completion, Model
    from openai.types.chat import ChatCompletion
    from openai.types.responses import Response

    with server.http() as http:
        for path, body, kind in (
            ("/v1/chat/completions", CHAT, ChatCompletion), ("/v1/responses", RESPONSE, Response),
            ("/v1/completions", {"prompt": "Hello", "logprobs": 2}, Completion), ("/v1/messages", MESSAGE, Message),
            ("/v1/messages/count_tokens", MESSAGE, MessageTokensCount),
        ):  # fmt: skip
            TypeAdapter(kind).validate_json(http.post(path, json=body).raise_for_status().content)
        Model.model_validate(http.get("/v1/models").json()["data"][0])
        ModelInfo.model_validate(http.get("/v1/models/demo", headers={"anthropic-version": "2023-06-01"}).json())


def test_what_events_hold(server: Running) -> None:
    from anthropic.types import RawMessageStreamEvent
    from openai.types.chat import ChatCompletionChunk
    from openai.types.responses import ResponseStreamEvent

    for path, body, kind in (
        ("/v1/chat/completions", CHAT, ChatCompletionChunk), ("/v1/responses", RESPONSE, ResponseStreamEvent),
        ("/v1/messages", MESSAGE, RawMessageStreamEvent),
    ):  # fmt: skip
        adapter, count = TypeAdapter[Any](kind), 0
        with server.http() as http:
            lines = http.post(path, json=body | {"stream": True}).raise_for_status().text.splitlines()
        for line in lines:
            if line.startswith("data: {"):
                if json.loads(line[6:]).get("type") != "ping":
                    adapter.validate_json(line[6:])
                count += 1
        assert count
