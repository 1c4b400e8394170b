"""Answers go back into later prompts with the ids that the model wrote, if their message came back unchanged."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from dflash_core.events import Event
from dflash_core.knobs import Knobs
from dflash_core.messages import Call, Message
from dflash_core.text.prompt import Prompt
from dflash_tui.server.written import Thoughts, WrittenAnswers
from support import demo_pair
from support.scripted import ScriptedEngine
from support.serving import Running, running

TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}},
}
ASK: dict[str, Any] = {"role": "user", "content": "Add 3"}
# With more white space than the template writes.
CALL = "<tool_call>\n<function=add>\n<parameter=n>\n 3 \n</parameter>\n\n</function>\n\n</tool_call>"


class Spelling(ScriptedEngine):
    """Writes each character as a token of its own, and records the prompts."""

    def __init__(self) -> None:
        super().__init__(lambda prompt: "")
        self.prompts: list[tuple[int, ...]] = []
        self.answers: list[tuple[int, ...]] = []

    def generate(self, ids: Sequence[int], knobs: Knobs, **_: Any) -> Iterator[Event]:
        self._cancelled.clear()
        tokenizer = self.target.tokenizer
        before = tokenizer.decode(ids)
        text = "It is\n\n 7." if "<tool_response>" in before else f"Let me  see.\n\n{CALL}"
        if before.rstrip().endswith("<think>"):
            text = f"I think so.\n</think>\n\n{text}"
        answer: list[int] = []
        for segment in tokenizer.segments(text):
            whole = isinstance(segment, int)
            answer += [segment] if whole else [id for each in segment for id in tokenizer.encode(each, special=False)]
        answer.append(tokenizer.special["<|im_end|>"])
        self.prompts.append(tuple(ids))
        self.answers.append(tuple(answer))
        return self._told_of(ids, answer, cut=False)


@pytest.fixture
def spelling() -> Iterator[tuple[Spelling, Running]]:
    engine = Spelling()
    with running(engine) as server:
        yield engine, server


def turn(server: Running, messages: list[Any], thinking: bool) -> dict[str, Any]:
    answer = server.openai().chat.completions.create(
        model="demo", messages=messages, tools=[TOOL],  # type: ignore[list-item]
        extra_body={"chat_template_kwargs": {"enable_thinking": thinking}},
    )  # fmt: skip
    return answer.choices[0].message.model_dump(exclude_none=True)


@pytest.mark.parametrize("thinking", [False, True])
def test_an_unchanged_answer_is_what_the_model_wrote(spelling: tuple[Spelling, Running], thinking: bool) -> None:
    engine, server = spelling
    first = turn(server, [ASK], thinking)
    assert json.loads(first["tool_calls"][0]["function"]["arguments"]) == {"n": 3}
    history = [ASK, first, {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "7"}]
    second = turn(server, history, thinking)
    written = (*engine.prompts[0], *engine.answers[0])
    assert engine.prompts[1][: len(written)] == written
    text = engine.target.tokenizer.decode(engine.prompts[1])
    assert text.count(CALL) == 1
    assert text.endswith("<think>\n" if thinking else "</think>\n\n")
    # A third turn has both in it, as far as the template leaves their reasoning in.
    third = turn(server, [*history, second, {"role": "tool", "tool_call_id": "b", "content": "again"}], thinking)
    written = (*engine.prompts[1], *engine.answers[1])
    assert engine.prompts[2][: len(written)] == written
    assert third["content"] == second["content"] == "It is\n\n 7."


@pytest.mark.parametrize("change", ["content", "arguments", "reasoning", "system"])
def test_a_changed_one_is_what_the_client_sends(spelling: tuple[Spelling, Running], change: str) -> None:
    engine, server = spelling
    first = turn(server, [ASK], True)
    history = [ASK, first, {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "7"}]
    if change == "content":
        first["content"] = "Let me  see!"
    elif change == "arguments":
        first["tool_calls"][0]["function"]["arguments"] = '{"n": 4}'
    elif change == "reasoning":
        del first["reasoning_content"]
    else:
        history.insert(0, {"role": "system", "content": "Be brief."})
    turn(server, history, True)
    assert CALL not in engine.target.tokenizer.decode(engine.prompts[1])


def test_a_real_answer_goes_on_from_its_own_state() -> None:
    """The demo pair's, whose calls are required, since it makes none by itself: all that was read and written is
    reused, but the last token, which no pass has read yet."""
    with running(demo_pair.new_engine()) as server:
        tool = {"type": "function", "function": {"name": "look"}}  # without arguments, so it is called once
        asked: dict[str, Any] = {"model": "demo", "tools": [tool], "extra_body": {"dflash": {"mode": "plain"}}}
        first = server.openai().chat.completions.create(messages=[ASK], tool_choice="required", **asked)
        message = first.choices[0].message
        assert message.tool_calls
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "7"}
        history: list[Any] = [ASK, message.model_dump(exclude_none=True), result]
        usage = server.openai().chat.completions.create(messages=history, max_tokens=2, **asked).usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        assert first.usage is not None
        written = first.usage.prompt_tokens + first.usage.completion_tokens
        assert usage.prompt_tokens_details.cached_tokens == written - 1


def test_places_after_an_answer_move_with_it() -> None:
    tokenizer = demo_pair.target().tokenizer
    end = tokenizer.special["<|im_end|>"]
    written = WrittenAnswers(tokenizer)
    messages = [Message("user", "a"), Message("assistant", "b c"), Message("user", "d")]
    b, c, other = (tokenizer.encode(text, special=False)[0] for text in ("b", "c", "x"))
    prompt = Prompt((1, 2, 3, b, end, 4, 5), "", opens_thinking=False, stable=6, head=2, continued=4)
    assert written.put_back(prompt, messages) == prompt
    written.add((1, 2, 3), 1, messages[1], (c, c, other, end))
    found = written.put_back(prompt, messages)
    assert found.ids == (1, 2, 3, c, c, other, end, 4, 5)
    assert (found.head, found.continued, found.stable) == (2, 3, 8)
    assert written.put_back(found, messages) == found, "once more changes nothing"
    for no in ([Message("user", "a"), messages[1]][1:], [messages[0], Message("assistant", "b d"), messages[2]]):
        assert written.put_back(prompt, no) == prompt
    longer = [messages[0], Message("assistant", "b c", "thought"), messages[2]]
    written.add((1, 2, 3), 1, longer[1], (c, end))
    assert written.put_back(prompt, longer) == prompt, "the template left the reasoning out"


def test_the_oldest_answers_go_first() -> None:
    tokenizer = demo_pair.target().tokenizer
    written = WrittenAnswers(tokenizer, max_bytes=1600)
    message = Message("assistant", "b", calls=(Call("", "f", {"x": 1}),))
    messages = [Message("user", "a"), message]
    for at in range(4):
        written.add((at,), 1, Message("assistant", str(at)), (7, 9))
        written.add((at,), 1, Message("assistant", str(at)), (7, 8, 9))  # in place of the one before
    found = [
        written.put_back(Prompt((at, 5, 9, 3), "", False, 0), [messages[0], Message("assistant", str(at))]).ids
        for at in range(4)
    ]
    assert found == [(0, 5, 9, 3), (1, 7, 8, 9, 3), (2, 7, 8, 9, 3), (3, 7, 8, 9, 3)]


@pytest.mark.parametrize("text", ["", "é" * 1000])
def test_stored_reasoning_takes_no_more_than_its_bytes(text: str) -> None:
    """A text of few characters takes a key and an entry all the same, and one of others more bytes than characters."""
    thoughts = Thoughts(max_bytes=25_000)
    keys = [thoughts.add(f"{at}{text}") for at in range(100)]
    stored = [key for key in keys if thoughts.get(key)]
    assert stored == keys[-len(stored) :]
    assert len(stored) * (500 + len(text.encode())) <= 25_000
