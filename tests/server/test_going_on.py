"""A conversation that ends with the assistant's message: its answer goes on, and only what is new comes back."""

from __future__ import annotations

from typing import Any

import pytest

from dflash_core.demo import smollm2_draft_path
from dflash_core.engine import Engine
from dflash_core.loading import load_draft, load_target
from dflash_core.text.tool_calls.answer import AnswerParts, AnswerShape
from dflash_core.text.tool_calls.forms import FORMS, Form
from dflash_core.text.tool_calls.parts import Text
from support import demo_pair
from support.real_models import smollm2
from support.serving import Running, running

QUESTION = "Tell me a story."
CHAT: list[Any] = [{"role": "user", "content": QUESTION}]
PLAIN = {"mode": "plain"}
ANSWER = 22


def chat(server: Running, messages: list[Any], *, thinking: bool = False, stream: bool = False, **more: Any) -> Any:
    """A message of an answer, its reason to end, and its usage."""
    extra = {"chat_template_kwargs": {"enable_thinking": thinking}, "dflash": PLAIN, **more.pop("extra", {})}
    asked: dict[str, Any] = {
        "model": server.service.name, "messages": messages, "temperature": 0, "extra_body": extra,
        "max_tokens": ANSWER, **more,
    }  # fmt: skip
    create = server.openai().chat.completions.create
    if not stream:
        found = create(**asked)
        message = found.choices[0].message.model_dump()
        said = message.get("reasoning_content") or "", message["content"] or ""
        return *said, found.choices[0].finish_reason, found.usage
    chunks = list(create(stream=True, stream_options={"include_usage": True}, **asked))
    deltas = [chunk.choices[0].delta.model_dump() for chunk in chunks if chunk.choices]
    reason = next(chunk.choices[0].finish_reason for chunk in reversed(chunks) if chunk.choices)
    said = tuple("".join(one.get(key) or "" for one in deltas) for key in ("reasoning_content", "content"))
    return *said, reason, chunks[-1].usage


def message(thinking: str, text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **({"reasoning_content": thinking} if thinking else {})}


@pytest.mark.parametrize("thinking", [False, True])
def test_a_cut_answer_goes_on_as_the_whole_one(thinking: bool) -> None:
    """Within the reasoning, and within the text. All that was read and written is reused but the last token, which no
    pass has read yet."""
    with running(demo_pair.new_engine()) as server:
        whole = chat(server, CHAT, thinking=thinking)
        assert bool(whole[0]) == thinking
        in_text = set[tuple[bool, bool]]()
        for limit, stream in ((5, False), (9, True), *([(19, False), (20, True)] if thinking else [])):
            cut = chat(server, CHAT, thinking=thinking, max_tokens=limit)
            assert cut[2] == "length"
            in_text.add((bool(cut[1]), stream))
            more = chat(server, [*CHAT, message(*cut[:2])], thinking=thinking, stream=stream, max_tokens=ANSWER - limit)
            assert (cut[0] + more[0], cut[1] + more[1]) == whole[:2]
            assert more[3].prompt_tokens == cut[3].prompt_tokens + limit
            assert more[3].completion_tokens == ANSWER - limit
            assert more[3].prompt_tokens_details.cached_tokens == more[3].prompt_tokens - 1
        assert len(in_text) == (4 if thinking else 2)


@pytest.mark.parametrize("thinking", [False, True])
def test_it_goes_on_where_the_server_has_not_written_it(thinking: bool) -> None:
    """After a new start, or with an edited answer: its text is encoded as the model writes it."""
    with running(demo_pair.new_engine()) as server:
        whole = chat(server, CHAT, thinking=thinking)
        cuts = {limit: chat(server, CHAT, thinking=thinking, max_tokens=limit)[:2] for limit in (8, 19)}
    with running(demo_pair.new_engine()) as server:
        for limit, (thought, text) in cuts.items():
            more = chat(server, [*CHAT, message(thought, text)], thinking=thinking, max_tokens=ANSWER - limit)
            assert (thought + more[0], text + more[1]) == whole[:2]
        if thinking:  # also where a client writes the reasoning into the text
            thought, text = cuts[8]
            assert not text
            opened = {"role": "assistant", "content": f"<think>\n{thought}"}
            same = [chat(server, [*CHAT, last], max_tokens=4) for last in (opened, message(thought, ""))]
            assert same[0] == same[1]


def test_an_answer_without_reasoning_gets_none(server: Running) -> None:
    """Although the request asks for it, and the template would open a block."""
    with server.http() as http:
        messages = [*CHAT, message("", "Once upon")]
        body = {"messages": messages, "chat_template_kwargs": {"enable_thinking": True}}
        prompt = http.post("/apply-template", json=body).json()["prompt"]
    assert prompt.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\nOnce upon")
    thinking, text, _, _ = chat(server, messages, thinking=True, max_tokens=6)
    assert text
    assert not thinking
    assert text == chat(server, messages, max_tokens=6)[1]


@pytest.mark.parametrize("thought", ["", "Well."])
def test_reasoning_that_is_closed_stays_so(server: Running, thought: str) -> None:
    """As clients send it that want an answer without more of it."""
    closed = {"role": "assistant", "content": f"<think>\n{thought}\n</think>\n\n"}
    with server.http() as http:
        prompt = http.post("/apply-template", json={"messages": [*CHAT, closed]}).json()["prompt"]
    assert prompt.endswith(f"assistant\n<think>\n{thought}\n</think>\n\n")
    thinking, text, _, _ = chat(server, [*CHAT, closed], thinking=True, max_tokens=6)
    assert text
    assert not thinking


def test_white_space_that_is_not_certain_to_be_text_comes_once() -> None:
    """An indentation may be the beginning of a line with a tag alone."""
    with running(demo_pair.new_engine()) as server:
        given = "def f():\n    "
        answer = {"regex": "def f\\(\\):\\n    return [0-9]"}
        for tools in ([], [{"type": "function", "function": {"name": "look"}}]):
            more: dict[str, Any] = {"tools": tools} if tools else {}
            found = chat(server, [*CHAT, message("", given)], extra={"dflash": {**PLAIN, **answer}}, **more)
            assert found[1][:-1] == "return "


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("text", ["a\n   ", "a <", '{"na', "a <tool_c", "a\n\n"])
def test_text_that_may_begin_a_call_comes_once(form: Form, text: str) -> None:
    shape = AnswerShape((), AnswerParts(form, []))
    shape.go_on(("", text), "", text)
    parts = [*shape.push("", "b."), *shape.push("", "c"), *shape.finish(cut=False)]
    assert "".join(part.text for part in parts if isinstance(part, Text)) == "b.c"


def test_a_schema_holds_for_the_whole_answer(server: Running) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"name": {"enum": ["red"]}}, "required": ["name"]}
    schema["additionalProperties"] = False
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    for thinking in (False, True):
        found = chat(server, [*CHAT, message("", '{"na')], thinking=thinking, response_format=form)
        assert found[1] == 'me": "red"}'
    with server.http() as http:
        body = {"messages": [*CHAT, message("", "Well")], "response_format": form}
        refused = http.post("/v1/chat/completions", json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "response_format"


def test_anthropic_s_prefill(server: Running) -> None:
    client = server.anthropic()
    asked: dict[str, Any] = {"model": "m", "max_tokens": 6, "extra_body": {"temperature": 0, "dflash": PLAIN}}
    thinking: dict[str, Any] = {"type": "adaptive"}
    blocks: list[Any] = [{"type": "text", "text": "Once upon a"}]
    last: Any = {"role": "assistant", "content": blocks}
    found = client.messages.create(messages=[*CHAT, last], **asked)
    assert [block.type for block in found.content] == ["text"]
    assert found.content[0].text == chat(server, [*CHAT, message("", "Once upon a")], max_tokens=6)[1]  # type: ignore[union-attr]
    again = client.messages.create(
        messages=[*CHAT, {"role": "assistant", "content": "Once upon a"}], thinking=thinking, **asked
    )
    assert again.content == found.content
    with client.messages.stream(messages=[*CHAT, last], **asked) as stream:
        assert "".join(stream.text_stream) == found.content[0].text  # type: ignore[union-attr]
    count = client.messages.count_tokens(model="m", messages=[*CHAT, last])
    assert count.input_tokens == found.usage.input_tokens + (found.usage.cache_read_input_tokens or 0)
    empty = client.messages.create(messages=[*CHAT, {"role": "assistant", "content": ""}], **asked)
    assert empty.content == client.messages.create(messages=CHAT, **asked).content
    blocks[0]["text"] = "Once upon a "
    with server.http() as http:
        refused = http.post("/v1/messages", json={"max_tokens": 4, "messages": [*CHAT, last]})
    assert refused.status_code == 400
    assert "messages[1].content ends with white space" in refused.json()["error"]["message"]


CALL = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("messages", "fields", "words", "place"),
    [
        ([message("", "") | {"tool_calls": [CALL]}], {}, "the last message calls tools", "messages"),
        ([message("", "a")], {"continue_final_message": False}, "is false, and the last message is the", None),
        ([message("", "a")], {"add_generation_prompt": True}, "is true, and the server goes on with", None),
        ([], {"continue_final_message": True}, "is true, and the last message is not the", None),
        ([], {"add_generation_prompt": False}, "is false, and the server answers", None),
    ],
)
def test_what_cannot_go_on(
    server: Running, messages: list[Any], fields: dict[str, Any], words: str, place: str | None
) -> None:
    with server.http() as http:
        answer = http.post("/v1/chat/completions", json={"messages": [*CHAT, *messages], **fields})
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == (place or next(iter(fields)))


def test_other_servers_names_for_it(server: Running) -> None:
    same = [
        chat(server, [*CHAT, message("", "Once")], extra=more, max_tokens=6)[1]
        for more in ({}, {"continue_final_message": True, "add_generation_prompt": False})
    ]
    assert same[0] == same[1]
    assert chat(server, CHAT, extra={"continue_final_message": False, "add_generation_prompt": True}, max_tokens=6)[1]


def test_smollm2_goes_on() -> None:
    """And the turn that follows begins with the whole answer, in the two parts that it was written in."""
    target = load_target(smollm2(), device="cpu")
    with running(Engine(target, load_draft(smollm2_draft_path(), target=target))) as server:
        whole = chat(server, CHAT, max_tokens=10)
        cut = chat(server, CHAT, max_tokens=6)
        more = chat(server, [*CHAT, message("", cut[1])], max_tokens=4)
        assert cut[1] + more[1] == whole[1]
        assert more[3].prompt_tokens_details.cached_tokens == more[3].prompt_tokens - 1
        asked = {"role": "user", "content": "What is the capital of France?"}
        cut = chat(server, [asked], max_tokens=2)
        more = chat(server, [asked, message("", cut[1])])
        assert more[2] == "stop"
        usage = chat(server, [asked, message("", cut[1] + more[1]), CHAT[0]], max_tokens=1)[3]
        assert usage.prompt_tokens_details.cached_tokens == more[3].prompt_tokens + more[3].completion_tokens - 1
