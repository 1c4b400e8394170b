"""Calls that a request requires, by a grammar, with speculation: each API, streamed and not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from support import demo_pair
from support.scripted import ScriptedEngine
from support.serving import Running, running

pytest.importorskip("llguidance")

SCHEMA = {
    "type": "object",
    "properties": {"colour": {"type": "string", "enum": ["red", "green"]}, "count": {"enum": [1, 2, 3]},
                   "dry": {"type": "boolean"}},
    "required": ["colour", "count"],
}  # fmt: skip
NOW = {"type": "object", "properties": {}}
SCHEMAS: dict[str, Any] = {"paint": SCHEMA, "now": NOW}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "description": "It works.", "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
ASK: list[Any] = [{"role": "user", "content": "hi"}]
NOTHING = {"type": "function", "function": {"name": "nothing"}}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(demo_pair.new_engine()) as found:
        yield found


def check(name: str, arguments: str) -> None:
    value = json.loads(arguments)
    if name == "now":
        assert value == {}
        return
    assert name == "paint"
    assert {"colour", "count"} <= set(value) <= {"colour", "count", "dry"}
    assert value["colour"] in ("red", "green")
    assert value["count"] in (1, 2, 3)
    assert type(value.get("dry", True)) is bool


PAINT = {"type": "function", "function": {"name": "paint"}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [PAINT]}}


@pytest.mark.parametrize(
    ("choice", "modes"), [("required", ("tree", "plain")), (PAINT, ("tree",)), (ALLOWED, ("plain",))]
)
def test_a_chat_has_to_call(server: Running, choice: Any, modes: tuple[str, ...]) -> None:
    for mode in modes:
        answer = server.openai().chat.completions.create(
            model="demo", messages=ASK, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False, max_tokens=200,
            extra_body={"dflash": {"mode": mode}, "chat_template_kwargs": {"enable_thinking": mode == "tree"}},
        )  # fmt: skip
        [call] = answer.choices[0].message.tool_calls or ()
        assert answer.choices[0].finish_reason == "tool_calls"
        assert not answer.choices[0].message.content
        check(call.function.name, call.function.arguments)  # type: ignore[union-attr]
        assert choice == "required" or call.function.name == "paint"  # type: ignore[union-attr]


def test_other_apis(server: Running) -> None:
    anthropic: list[Any] = [{"name": name, "input_schema": schema} for name, schema in SCHEMAS.items()]
    message = server.anthropic().messages.create(
        model="demo", max_tokens=200, messages=ASK, tools=anthropic,
        tool_choice={"type": "tool", "name": "paint", "disable_parallel_tool_use": True},
    )  # fmt: skip
    [block] = message.content
    assert block.type == "tool_use"
    assert message.stop_reason == "tool_use"
    check(block.name, json.dumps(block.input))
    flat: list[Any] = [{"type": "function", "name": name, "parameters": schema} for name, schema in SCHEMAS.items()]
    named: Any = {"type": "function", "name": "paint"}
    for choice in (named, {"type": "allowed_tools", "mode": "required", "tools": [named]}):
        response = server.openai().responses.create(
            model="demo", input="hi", tools=flat, tool_choice=choice, max_output_tokens=200, parallel_tool_calls=False
        )
        [item] = [one for one in response.output if one.type == "function_call"]
        assert item.name == "paint"
        check(item.name, item.arguments)


@pytest.mark.parametrize(
    ("choice", "more"),
    [("required", {"tools": []}), ({"type": "function", "function": {"name": "fly"}}, {}), ({"type": "function"}, {}),
     ({**ALLOWED, "allowed_tools": {"mode": "required", "tools": [NOTHING]}}, {}), ({"type": "allowed_tools"}, {}),
     ({**ALLOWED, "allowed_tools": {"mode": "must", "tools": [PAINT]}}, {}),
     ({**ALLOWED, "allowed_tools": {"tools": [{"type": "function"}]}}, {}),
     ("always", {}), ({}, {})],
)  # fmt: skip
def test_what_cannot_be_required_is_refused(server: Running, choice: Any, more: dict[str, Any]) -> None:
    body = {"messages": ASK, "tools": TOOLS, "tool_choice": choice, **more}
    with server.http() as client:
        answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("tool_choice")


NUMBER = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": NUMBER}}


def test_a_format_leaves_a_choice_of_calls(server: Running) -> None:
    """Regressions: with a format no tool could be called, and a call that is required was refused."""
    asked: dict[str, Any] = {"model": "demo", "messages": ASK, "tools": TOOLS, "response_format": FORMAT}
    asked |= {"max_tokens": 200, "parallel_tool_calls": False, "extra_body": {"dflash": {"mode": "tree"}}}
    for choice in ("required", PAINT):
        message = server.openai().chat.completions.create(tool_choice=choice, **asked).choices[0].message
        [call] = message.tool_calls or ()
        check(call.function.name, call.function.arguments)  # type: ignore[union-attr]
        assert not message.content
    for choice in ("auto", "none"):
        message = server.openai().chat.completions.create(tool_choice=choice, **asked).choices[0].message
        assert message.tool_calls or json.loads(message.content or "")["n"] in (1, 2)
        assert not (message.tool_calls and choice == "none")
    call_text = "<tool_call>\n<function=now>\n</function>\n</tool_call>"
    with running(ScriptedEngine(lambda prompt: call_text)) as scripted:
        message = scripted.openai().chat.completions.create(**asked).choices[0].message
    [call] = message.tool_calls or ()
    check(call.function.name, call.function.arguments)  # type: ignore[union-attr]
