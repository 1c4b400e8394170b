"""Answers that follow a JSON schema: in every dialect, in every mode, with reasoning before them."""

from __future__ import annotations

import json
import logging
import threading
from typing import Any

import pytest

from dflash_core.constraints import grammar as compiling
from support.grids import full
from support.serving import Running

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"sum": {"type": "integer"}, "odd": {"type": "boolean"}, "word": {"enum": ["one", "two"]}},
    "required": ["sum", "odd", "word"],
    "additionalProperties": False,
}
CHAT: list[Any] = [{"role": "user", "content": "What is 12 plus 7?"}]


def follows(text: str) -> None:
    found = json.loads(text)
    assert set(found) == {"sum", "odd", "word"}
    assert (type(found["sum"]), type(found["odd"])) == (int, bool)
    assert found["word"] in ("one", "two")


@pytest.mark.parametrize(("thinking", "temperature"), [(False, 1.0), (True, 0.0), full(False, 0.0), full(True, 1.0)])
def test_a_chat_follows_a_schema_in_every_mode(server: Running, thinking: bool, temperature: float) -> None:
    texts = set()
    for mode in ("plain", "chain", "tree"):
        answer = server.openai().chat.completions.create(
            model="demo", messages=CHAT, max_tokens=400, seed=5, temperature=temperature,
            response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}},
            extra_body={"dflash": {"mode": mode}, "chat_template_kwargs": {"enable_thinking": thinking}},
        )  # fmt: skip
        choice = answer.choices[0]
        assert choice.finish_reason == "stop"
        follows(choice.message.content or "")
        assert bool((choice.message.model_extra or {}).get("reasoning_content")) == thinking
        texts.add(choice.message.content)
    assert len(texts) == 1


def test_responses_and_messages_follow_it_too(server: Running) -> None:
    response = server.openai().responses.create(
        model="demo", input="What is 12 plus 7?",
        text={"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}},
    )  # fmt: skip
    follows(response.output_text)
    message: Any = server.anthropic().messages.create(
        model="m", max_tokens=300, messages=CHAT,
        extra_body={"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    )  # fmt: skip
    follows(message.content[0].text)


@pytest.mark.parametrize("grammar", [{"regex": "(ab){2}c"}, {"choice": ["ababc"]}, {"lark": 'start: "ab" "ab" "c"'}])
def test_grammars_of_the_extension_hold_in_every_dialect(server: Running, grammar: dict[str, Any]) -> None:
    more = {"max_tokens": 50, "dflash": grammar}
    with server.http() as http:
        chat = http.post("/v1/chat/completions", json={"messages": CHAT, **more}).json()
        message = http.post("/v1/messages", json={"messages": CHAT, **more}).json()
        response = http.post("/v1/responses", json={"input": "Hello", "dflash": grammar}).json()
        plain = http.post("/v1/completions", json={"prompt": "Hello", **more}).json()
    assert chat["choices"][0]["message"]["content"] == "ababc"
    assert message["content"][0]["text"] == "ababc"
    assert response["output"][0]["content"][0]["text"] == "ababc"
    assert plain["choices"][0]["text"] == "ababc"


def test_a_schema_that_turns_out_too_large_is_the_requests_fault(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    """It compiles, and is refused after the first tokens; a status of 500 would make clients send it again."""
    wide = {"type": "object", "properties": {f"secret{at}": {"type": "string"} for at in range(600)}}
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": wide}}
    body = {"messages": CHAT, "max_tokens": 50, "response_format": wanted}
    with server.http() as http, caplog.at_level(logging.ERROR):
        whole = http.post("/v1/chat/completions", json=body)
        stream = http.post("/v1/chat/completions", json=body | {"stream": True})
    assert whole.status_code == 400
    assert whole.json()["error"]["type"] == "invalid_request_error"
    assert "invalid_request_error" in stream.text
    assert not caplog.records


def test_any_object_and_a_cut_one(server: Running) -> None:
    cut = server.openai().chat.completions.create(
        model="demo", messages=CHAT, max_tokens=1, response_format={"type": "json_object"}
    )
    assert (cut.choices[0].message.content or "").lstrip().startswith("{")
    assert cut.choices[0].finish_reason == "length"


def test_while_too_many_grammars_are_late_another_one_may_come_later(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, compile = threading.Event(), compiling.Grammars._compile

    def slow(self: compiling.Grammars, grammar: compiling.Grammar, around: str) -> Any:
        if grammar.source.startswith("slow"):
            released.wait(60)
        return compile(self, grammar, around)

    def ask(regex: str) -> int:
        with server.http() as http:
            body = {"messages": CHAT, "max_tokens": 5, "dflash": {"regex": regex}}
            answer = http.post("/v1/chat/completions", json=body)
            assert (answer.status_code == 429) == ("retry-after" in answer.headers)
            return answer.status_code

    assert ask("ab") == 200
    monkeypatch.setattr(compiling.Grammars, "_compile", slow)
    monkeypatch.setattr(compiling, "COMPILE_S", 0.01)
    assert [ask(f"slow{number}") for number in range(compiling.MAX_LATE)] == [400] * compiling.MAX_LATE
    monkeypatch.setattr(compiling, "COMPILE_S", 60.0)
    assert ask("abc") == 429
    late = [one for one in threading.enumerate() if one.name == "dflash-grammar"]
    released.set()
    for one in late:
        one.join()
    assert ask("abc") == 200
