"""What clients really send and expect, dialect by dialect, on answers that are given."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import pytest
from msgspec import inspect

from dflash_core.constraints.grammar import Grammar, Grammars
from dflash_tui.server import body as bodies
from dflash_tui.server.settings import ServerSettings
from support import demo_pair
from support.description import POSTED
from support.scripted import ScriptedEngine
from support.serving import Running, place_of, raw_request, running

ASK: list[Any] = [{"role": "user", "content": "Hello"}]
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "look", "parameters": {
    "type": "object", "properties": {"at": {"type": "string"}}}}}  # fmt: skip
LONG = "word " * 600
WIDE = "né 🦊👩‍👩‍👧 日本語 ẞ"
THOUGHT = "Let me STOP and think.\n</think>\n\nBefore STOP after."
CALL = "<tool_call>\n<function=look>\n<parameter=at>\na STOP b\n</parameter>\n</function>\n</tool_call>"
STREAMED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": ASK},
    "/v1/completions": {"prompt": "Hello"},
    "/v1/responses": {"input": ASK},
    "/v1/messages": {"messages": ASK, "model": "m", "max_tokens": 900},
}
prompts: list[str] = []
script = {"": "I see."}


def answer(prompt: str) -> str:
    prompts.append(prompt)
    return script[""]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(ScriptedEngine(answer, width=2)) as found:
        yield found


@pytest.fixture(autouse=True)
def forget() -> None:
    prompts.clear()
    script[""] = "I see."


def post(server: Running, path: str, body: dict[str, Any], status: int = 200) -> Any:
    with server.http() as http:
        response = http.post(path, json=body)
    assert response.status_code == status, response.text
    return response.json()


def events(server: Running, path: str, **more: Any) -> list[dict[str, Any]]:
    with server.http() as http:
        text = http.post(path, json=STREAMED[path] | {"stream": True} | more).text
    assert "\ufffd" not in text
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


def written(path: str, event: dict[str, Any]) -> str:
    """The answer's text in an event."""
    if path == "/v1/messages":
        return str(event.get("delta", {}).get("text", ""))
    if path == "/v1/responses":
        return str(event["delta"]) if event["type"] == "response.output_text.delta" else ""
    return "".join(one.get("text") or one.get("delta", {}).get("content") or "" for one in event["choices"])


def structs(kind: object, found: set[type]) -> set[type]:
    """The structs that a type is made of."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in found:
        found.add(kind)
        for field in inspect.type_info(kind).fields:  # type: ignore[attr-defined]
            structs(kind.__annotations__.get(field.name), found)
        for field in msgspec.structs.fields(kind):
            structs(field.type, found)
    for inner in get_args(kind):
        structs(inner, found)
    return found


def test_null_is_as_absent_in_every_optional_field() -> None:
    known = set[type]()
    for kind in POSTED.values():
        structs(kind, known)
    assert len(known) > 15
    refused = []
    for kind in known:
        for field in msgspec.structs.fields(kind):
            if not field.required:
                try:
                    msgspec.convert(None, field.type)
                except msgspec.ValidationError:
                    refused.append(f"{kind.__name__}.{field.name}")
    assert not refused


@pytest.mark.parametrize("path", STREAMED)
def test_no_event_has_half_a_character(server: Running, path: str) -> None:
    script[""] = WIDE
    assert "".join(written(path, one) for one in events(server, path)) == WIDE


@pytest.mark.parametrize("path", [path for path in STREAMED if path != "/v1/messages"])
def test_without_a_limit_the_context_is_it(server: Running, path: str) -> None:
    """Agents send none, and their answers are longer than a chat's."""
    script[""] = LONG
    assert "".join(written(path, one) for one in events(server, path)) == LONG


def test_an_answer_names_the_model_that_a_message_leaves_out(server: Running) -> None:
    script[""] = "I see."
    body = {"messages": ASK, "max_tokens": 9}
    assert post(server, "/v1/messages", body)["model"] == post(server, "/v1/chat/completions", body)["model"] != ""
    assert post(server, "/v1/messages", body | {"model": "any"})["model"] == "any"


def test_events_of_a_response_are_numbered(server: Running) -> None:
    found = events(server, "/v1/responses")
    assert [one["sequence_number"] for one in found] == list(range(len(found)))
    assert [found[0]["type"], found[-1]["type"]] == ["response.created", "response.completed"]
    assert found[-1]["response"]["output"][0]["content"][0]["text"] == "I see."


def test_stop_strings_are_looked_for_in_the_text_alone(server: Running) -> None:
    script[""] = THOUGHT
    body = {"messages": ASK, "stop": "STOP", "chat_template_kwargs": {"enable_thinking": True}}
    message = post(server, "/v1/chat/completions", body)["choices"][0]["message"]
    assert (message["reasoning_content"].strip(), message["content"]) == ("Let me STOP and think.", "Before ")
    script[""] = CALL
    choice = post(server, "/v1/chat/completions", {"messages": ASK, "stop": "STOP", "tools": [TOOL]})["choices"][0]
    (call,) = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"at": "a STOP b"}
    assert choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_a_system_message_in_mid_conversation_keeps_its_place(server: Running, path: str) -> None:
    history = [
        {"role": "system", "content": "First."}, {"role": "user", "content": "One"},
        {"role": "assistant", "content": "Two"}, {"role": "user", "content": "Three"},
        {"role": "system", "content": "Later."},
    ]  # fmt: skip
    post(server, path, STREAMED[path] | {"input" if path == "/v1/responses" else "messages": history})
    (prompt,) = prompts
    places = [prompt.index(word) for word in ("First.", "One", "Two", "Three", "<system>\nLater.\n</system>")]
    assert places == sorted(places)


def test_a_summary_in_the_place_of_a_history_is_answered(server: Running) -> None:
    """As the Continue CLI 1.5.47 sends it once it has shortened a conversation: no user message, the answer's last."""
    history = [{"role": "system", "content": "First."}, {"role": "assistant", "content": "So far."}]
    post(server, "/v1/chat/completions", {"messages": history, "tools": [TOOL], "max_tokens": 512})
    (prompt,) = prompts
    assert prompt.partition("So far.")[2].startswith("<|im_end|>\n<|im_start|>user\ncontinue<|im_end|>\n")


def test_blocks_of_messages(server: Running) -> None:
    """Failed results, reasoning that nobody may read, tools that run elsewhere, and an answer of nothing."""
    content = [
        {"type": "redacted_thinking", "data": "abc"}, {"type": "tool_use", "id": "t1", "name": "look", "input": {}},
    ]  # fmt: skip
    history = [
        *ASK, {"role": "assistant", "content": content},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "is_error": True, "content": "no such file"},
            {"type": "text", "text": "Go on", "cache_control": {"type": "ephemeral"}}]},
    ]  # fmt: skip
    tools = [
        {"type": "web_search_20250305", "name": "web_search"},
        {"name": "look", "input_schema": {"$schema": "http://json-schema.org/x", "type": "object", "properties": {}}},
    ]
    script[""] = ""
    found = post(server, "/v1/messages", {"messages": history, "model": "m", "max_tokens": 5, "tools": tools})
    assert found["content"] == [{"type": "text", "text": ""}]
    (prompt,) = prompts
    assert "Error: no such file" in prompt
    assert "Go on" in prompt
    assert '"look"' in prompt
    assert not [word for word in ("abc", "web_search", "$schema", "ephemeral") if word in prompt]


def test_reasoning_comes_back_by_its_key(server: Running) -> None:
    """Codex sends the key alone, in a loop of tools, where the template shows the reasoning."""
    script[""] = "A thought.\n</think>\n\n" + CALL
    body = {"input": ASK, "reasoning": {"effort": "high"}, "tools": [{"type": "function", "name": "look"}]}
    assert "encrypted_content" not in post(server, "/v1/responses", body)["output"][0]
    body |= {"include": ["reasoning.encrypted_content"]}
    reasoning, call = post(server, "/v1/responses", body)["output"]
    key = reasoning["encrypted_content"]
    assert "thought" not in key
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "nothing"}
    for sent, shown in ((key, True), ("a key of elsewhere", False), (None, False)):
        item = {"type": "reasoning", "summary": [], "content": None, "encrypted_content": sent}
        post(server, "/v1/responses", body | {"input": [*ASK, item, call, result]})
        assert ("A thought." in prompts[-1]) == shown


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_each_chunk_has_timings_on_request(server: Running, path: str) -> None:
    script[""] = "one two three four five"
    plain, timed = (events(server, path, timings_per_token=asked) for asked in (None, True))
    assert not any("timings" in one for one in plain if written(path, one))
    found = [one["timings"] for one in timed if written(path, one)] + [timed[-1]["timings"]]
    counts = [(one["predicted_n"], one["draft_n"], one["draft_n_accepted"]) for one in found]
    assert counts == sorted(counts)
    assert len(found) > 1
    assert found[0].keys() == found[-1].keys()
    assert 0 < counts[0][0] <= 6 == counts[-1][0]
    assert found[0]["prompt_n"] == found[-1]["prompt_n"] > 0


def test_items_that_are_not_known_are_left_out_with_a_note(server: Running) -> None:
    found = post(server, "/v1/responses", {"input": [{"type": "of_the_future", "x": 1}, *ASK]})
    assert any("of_the_future" in note for note in found["dflash"]["notes"])
    with server.http() as http:
        assert http.delete("/v1/responses/resp_1").status_code == 404


def test_a_body_over_32_mib_is_refused_unread() -> None:
    with running(demo_pair.new_engine()) as server, socket.create_connection(place_of(server)) as raw:
        raw.sendall(b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % (2**25 + 1))
        assert raw.recv(100).startswith(b"HTTP/1.1 413 ")


def test_a_body_that_stops_coming_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "PATIENCE_S", 0.05)
    with running(demo_pair.new_engine(), ServerSettings(port=0)) as server:
        with socket.create_connection(place_of(server)) as raw:
            raw.sendall(raw_request({"messages": ASK})[:-5])
            assert raw.recv(100).startswith(b"HTTP/1.1 408 ")
        assert post(server, "/tokenize", {"content": "a"})["tokens"]


@pytest.mark.parametrize(
    ("text", "follows"),
    [('{"a": 1}', True), ('{ "a": 1}', False), ('{"a":  1}', False), ('{"a":\n1}', False), ('{"a": 1 }', False)],
)
def test_white_space_in_json_has_an_end(text: str, follows: bool) -> None:
    """Weak models write it for ever where they may."""
    engine = demo_pair.new_engine()
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    found = Grammars(engine.target.tokenizer, engine.vocab_size).constraint(Grammar.schema(schema))
    ids = engine.target.tokenizer.encode(text, special=False)
    assert all(found.admits(ids[:at], id) for at, id in enumerate(ids)) == follows
