"""Tools over an attached server, ours and others: offered, called, and their results sent back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from dflash_core.knobs import Knobs
from dflash_core.messages import Call, Message
from dflash_tui.application.attach.attaching import attach
from dflash_tui.application.attach.own import AttachedSession
from dflash_tui.application.attach.server import AttachedServer, Stream
from dflash_tui.application.attach.session import ServerSession, StreamedTurn
from dflash_tui.application.session import LoadRequest
from dflash_tui.application.tools.offered import OfferedTool, for_template
from support.engine_recordings import Recording
from support.engine_server import replaying
from support.scripted import ScriptedEngine
from support.serving import Running, running

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}}}
ARGUMENTS = {"path": "a.txt", "lines": 3}
CALL = (
    "<tool_call>\n<function=read_file>\n<parameter=path>\na.txt\n</parameter>\n<parameter=lines>\n3\n</parameter>\n"
    "</function>\n</tool_call>"
)
RESULT = "the file says <|im_end|> hello"
TOOLS = for_template([OfferedTool("files", "read_file", "read_file", "Reads a file.", SCHEMA)])


def script(prompt: str) -> str:
    thinks = "I read it.\n</think>\n\n" if prompt.rstrip().endswith("<think>") else ""
    called = "<tool_response>" in prompt.rpartition("<|im_start|>user")[2]
    return thinks + ("It says hello." if called else f"I look.\n\n{CALL}")


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(ScriptedEngine(script, width=5)) as found:
        yield found


@pytest.mark.parametrize("thinking", [False, True])
def test_a_tool_is_called_through_our_server(server: Running, thinking: bool) -> None:
    conversation = AttachedSession(AttachedServer(server.address)).conversation
    conversation.tools = TOOLS
    knobs = Knobs().replace(thinking=thinking, max_tokens=300)
    turn = conversation.ask("Read a.txt", knobs)
    pieces = list(turn)
    (call,) = turn.calls
    assert (call.name, call.arguments) == ("read_file", ARGUMENTS)
    assert turn.text == "I look."
    assert "".join(piece.text for piece in pieces) == turn.text
    assert turn.thinking.strip() == ("I read it." if thinking else "")
    assert turn.record is not None
    assert conversation.messages[-1].calls == (call,)
    answer = conversation.ask([Message("tool", RESULT, call_id=call.id, name=call.name)], knobs)
    list(answer)
    assert (answer.text, tuple(answer.calls)) == ("It says hello.", ())
    again = conversation.retry(knobs)
    list(again)
    assert again.text == answer.text


def piece(delta: Mapping[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def pieces() -> Iterator[dict[str, Any]]:
    first = {"index": 0, "id": "call_a", "type": "function", "function": {"name": "read_file", "arguments": ""}}
    rest = [{"index": 0, "function": {"arguments": part}} for part in ('{"path": ', '"a.txt"}')]
    second = {"index": 1, "id": "call_b", "function": {"name": "read_file", "arguments": '{"path": "b.txt"}'}}
    yield piece({"content": "I look."})
    yield from (piece({"tool_calls": [one]}) for one in (first, *rest, second))
    yield piece({}, "tool_calls")


def test_a_tool_is_called_through_another_engine() -> None:
    listed = {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "someone"}]}
    it = Recording("", "", "m", {"/v1/models": listed}, "/v1/chat/completions", tuple(pieces()))
    with replaying(it) as there:
        conversation = attach(LoadRequest(attach=there.url)).conversation
        assert conversation.tools_note == ""
        conversation.tools = TOOLS
        turn = conversation.ask("Read a.txt", Knobs())
        list(turn)
        assert there.body("/v1/chat/completions")["tools"] == TOOLS
        assert turn.text == "I look."
        assert tuple(turn.calls) == (
            Call("call_a", "read_file", {"path": "a.txt"}), Call("call_b", "read_file", {"path": "b.txt"}),
        )  # fmt: skip
        list(conversation.ask([Message("tool", "hello", call_id=one.id, name=one.name) for one in turn.calls], Knobs()))
        _, assistant, *results = there.body("/v1/chat/completions")["messages"]
        arguments = [one["function"]["arguments"] for one in assistant["tool_calls"]]
        assert arguments == ['{"path": "a.txt"}', '{"path": "b.txt"}']
        assert [(one["role"], one["tool_call_id"]) for one in results] == [("tool", "call_a"), ("tool", "call_b")]


@pytest.mark.parametrize(
    ("pieces", "cut", "expected"),
    [
        ([{"function": {"name": "f", "arguments": {"a": 1}}}], False, [("f", {"a": 1})]),
        ([{"index": 0, "function": {"name": "f", "arguments": '{"a": '}}], True, []),
        ([{"index": 0, "function": {"name": "f", "arguments": "no JSON"}}], False, [("f", {"arguments": "no JSON"})]),
        ([{"index": 3, "function": {"arguments": "{}"}}, {"function": None}], False, []),
    ],
)  # fmt: skip
def test_pieces_of_calls(pieces: list[dict[str, Any]], cut: bool, expected: list[tuple[str, Any]]) -> None:
    server = AttachedServer("http://127.0.0.1:9")
    calls = StreamedTurn(ServerSession(server, "none"), Stream(server, "/"), None)
    for piece in pieces:
        calls.take([piece])
    calls.end(cut=cut)
    assert [(call.name, call.arguments) for call in calls.calls] == expected
    assert len({call.id for call in calls.calls}) == len(calls.calls)
