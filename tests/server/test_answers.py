"""Answers through the official clients: what is streamed is what is not, and the figures are true."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from dflash_core.answer import Answer
from dflash_core.conversation import Conversation
from dflash_core.events import Event
from dflash_core.knobs import Knobs
from dflash_core.record import Start
from dflash_core.text.prompt import Prompt
from support import demo_pair
from support.scripted import ScriptedEngine
from support.serving import Running, running

if TYPE_CHECKING:
    from anthropic.types import Message
    from openai.types.chat import ChatCompletion

QUESTION = "What is 12 plus 7?"
CHAT: list[Any] = [{"role": "user", "content": QUESTION}]
# Deterministic, whatever `auto` has learned: the CPU rounds widths differently by 1e-7.
PLAIN = {"dflash": {"mode": "plain"}}


@cache
def asked(prompt: str) -> tuple[str, str, tuple[int, ...]]:
    """The answer of the decoder without a server: reasoning, text and tokens."""
    engine = demo_pair.new_engine()
    conversation = Conversation(engine, engine.target.tokenizer, engine.target.template)
    turn = conversation.ask(prompt, Knobs().replace(mode="plain"))
    for _ in turn:
        pass
    assert turn.report is not None
    return turn.thinking, turn.text, turn.report.tokens


def test_models_are_listed(server: Running) -> None:
    (model,) = server.openai().models.list().data
    assert (model.id, model.owned_by) == ("demo", "dflash-tui")
    assert server.openai().models.retrieve("demo").id == "demo"
    (listed,) = server.anthropic().models.list().data
    assert (listed.id, listed.display_name, listed.type) == ("demo", "demo", "model")
    with server.http() as http:
        assert http.get("/v1/models/").json() == http.get("/v1/models").json()
        body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
        assert http.post("/v1//chat/completions/", json=body).status_code == 200


def test_a_chat_is_what_the_decoder_says(server: Running) -> None:
    thinking, text, tokens = asked(QUESTION)
    answer = server.openai().chat.completions.create(model="demo", messages=CHAT, extra_body=PLAIN)
    choice = answer.choices[0]
    assert (choice.message.content, choice.finish_reason, thinking) == (text, "stop", "")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(tokens)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + len(tokens)
    timings = answer.model_extra["timings"]
    assert timings["cache_n"] + timings["prompt_n"] == answer.usage.prompt_tokens
    assert timings["predicted_n"] == len(tokens)


@pytest.fixture(scope="module")
def scripted() -> Iterator[Running]:
    """Answers with reasoning where the prompt asks for it."""

    def answer(prompt: str) -> str:
        return ("I need 12 + 7.\n</think>\n\n" if prompt.endswith("<think>\n") else "") + "12 + 7 = 19."

    with running(ScriptedEngine(answer)) as found:
        yield found


def test_a_chat_is_the_same_streamed(scripted: Running) -> None:
    client = scripted.openai()
    for thinking in (False, True):
        more: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": thinking}, **PLAIN}
        whole = client.chat.completions.create(model="demo", messages=CHAT, extra_body=more)
        stream = client.chat.completions.create(
            model="demo", messages=CHAT, stream=True, stream_options={"include_usage": True}, extra_body=more
        )
        chunks = list(stream)
        assert len({(chunk.id, chunk.created) for chunk in chunks}) == 1
        deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
        assert (deltas[0].role, deltas[0].content) == ("assistant", "")
        assert "".join(one.content or "" for one in deltas) == whole.choices[0].message.content
        reasoning = "".join((one.model_extra or {}).get("reasoning_content", "") for one in deltas)
        assert reasoning == ((whole.choices[0].message.model_extra or {}).get("reasoning_content") or "")
        assert bool(reasoning) == thinking
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
        assert chunks[-1].usage is not None
        assert whole.usage is not None
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_a_message_is_the_same_streamed(scripted: Running) -> None:
    client = scripted.anthropic()
    for thinking in ("disabled", "adaptive"):
        asked: dict[str, Any] = {"model": "any", "max_tokens": 200, "messages": CHAT, "thinking": {"type": thinking}}
        whole: Message = client.messages.create(**asked, extra_body=PLAIN)
        with client.messages.stream(**asked, extra_body=PLAIN) as stream:
            kinds = [event.type for event in stream]
            streamed = stream.get_final_message()
        assert contents(streamed) == contents(whole)
        assert [kind for kind, _ in contents(whole)] == (["thinking"] * (thinking == "adaptive") + ["text"])
        assert (streamed.stop_reason, whole.stop_reason) == ("end_turn", "end_turn")
        assert streamed.usage.output_tokens == whole.usage.output_tokens
        assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
        assert (streamed.model, streamed.role) == ("any", "assistant")


def contents(message: Message) -> list[tuple[str, Any]]:
    fields = {"thinking": "thinking", "text": "text", "tool_use": "input"}
    return [(block.type, getattr(block, fields[block.type])) for block in message.content]


def test_a_response_is_the_same_streamed(scripted: Running) -> None:
    client = scripted.openai()
    for effort in ("none", "high"):
        more: dict[str, Any] = {"reasoning": {"effort": effort}, "instructions": "Be short.", "extra_body": PLAIN}
        whole = client.responses.create(model="demo", input=QUESTION, **more)
        with client.responses.stream(model="demo", input=QUESTION, **more) as stream:
            events = list(stream)
            streamed = stream.get_final_response()
        assert streamed.output_text == whole.output_text != ""
        assert [item.type for item in streamed.output] == [item.type for item in whole.output]
        assert [item.type for item in whole.output] == ["reasoning"] * (effort == "high") + ["message"]
        assert (streamed.status, whole.status) == ("completed", "completed")
        assert [event.sequence_number for event in events if hasattr(event, "sequence_number")] == sorted(
            event.sequence_number for event in events if hasattr(event, "sequence_number")
        )
        assert [event.type for event in events][:2] == ["response.created", "response.in_progress"]
        assert whole.usage is not None
        assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens


def test_a_completion_uses_no_template(server: Running) -> None:
    client = server.openai()
    tokenizer = server.service.preparer.tokenizer
    text = "def add(a, b):"
    by_text = client.completions.create(model="demo", prompt=text, max_tokens=12, extra_body=PLAIN)
    by_ids = client.completions.create(model="demo", prompt=tokenizer.encode(text), max_tokens=12, extra_body=PLAIN)
    streamed = client.completions.create(model="demo", prompt=text, max_tokens=12, stream=True, extra_body=PLAIN)
    assert by_text.usage is not None
    assert by_text.usage.prompt_tokens == len(tokenizer.encode(text))
    assert by_text.choices[0].text == by_ids.choices[0].text == "".join(one.choices[0].text for one in streamed)


@pytest.mark.parametrize("mode", ["plain", "chain", "tree", "auto"])
def test_a_stop_string_cuts_the_same_in_every_mode(server: Running, mode: str) -> None:
    """It spans tokens, and a step may bring what follows it."""
    _, text, _ = asked(QUESTION)
    stop = text[3:8]
    expected = text[: text.index(stop)]
    client = server.openai()
    body = {"dflash": {"mode": mode}}
    whole = client.chat.completions.create(model="demo", messages=CHAT, stop=[stop, "never"], extra_body=body)
    stream = client.chat.completions.create(model="demo", messages=CHAT, stop=stop, stream=True, extra_body=body)
    assert whole.choices[0].message.content == expected
    assert "".join(one.choices[0].delta.content or "" for one in stream) == expected
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == tokens_before(server, text, len(expected))
    message = server.anthropic().messages.create(
        model="m", max_tokens=100, messages=CHAT, stop_sequences=[stop], extra_body=body
    )
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
    assert contents(message) == [("text", expected)]


def tokens_before(server: Running, text: str, cut: int) -> int:
    """Tokens of an answer whose text begins before a place in it; the answer's own tokens are those of its text."""
    tokenizer = server.service.preparer.tokenizer
    found, length = 0, 0
    for id in tokenizer.encode(text, special=False):
        found += length < cut
        length += len(tokenizer.token_bytes(id).decode())
    return found


def test_the_limit_of_tokens(server: Running) -> None:
    client = server.openai()
    for names in ({"max_tokens": 3}, {"max_completion_tokens": 3}, {"max_tokens": 9, "max_completion_tokens": 3}):
        cut: ChatCompletion = client.chat.completions.create(model="demo", messages=CHAT, **names)
        assert cut.choices[0].finish_reason == "length"
        assert cut.usage is not None
        assert cut.usage.completion_tokens == 3
    message = server.anthropic().messages.create(model="m", max_tokens=3, messages=CHAT)
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 3)
    response = client.responses.create(model="demo", input=QUESTION, max_output_tokens=3)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


def test_an_agent_s_round_limit_is_clamped(server: Running) -> None:
    message = server.anthropic().messages.create(model="m", max_tokens=32_000, messages=CHAT)
    assert message.stop_reason == "end_turn"


def test_a_seed_repeats_an_answer(server: Running) -> None:
    client = server.openai()

    def drawn(seed: int | None, mode: str = "plain") -> tuple[str, int]:
        answer = client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": "Tell me a story."}], max_tokens=5, temperature=1.5,
            seed=seed, extra_body={"dflash": {"mode": mode}},
        )  # fmt: skip
        return answer.choices[0].message.content or "", answer.model_extra["dflash"]["seed"]

    texts = [drawn(seed) for seed in (1, 2, 3)]
    assert len({text for text, _ in texts}) > 1
    assert [seed for _, seed in texts] == [1, 2, 3]
    assert drawn(3) == texts[-1]
    text, seed = drawn(None)
    assert drawn(seed)[0] == text


def test_counts_are_those_of_the_answer(server: Running) -> None:
    client = server.anthropic()
    system = "You are terse."
    counted = client.messages.count_tokens(model="m", messages=CHAT, system=system).input_tokens
    used = client.messages.create(model="m", max_tokens=4, messages=CHAT, system=system).usage
    assert counted == used.input_tokens + (used.cache_read_input_tokens or 0)
    response = server.openai().responses.input_tokens.count(model="demo", input=QUESTION)
    answered = server.openai().responses.create(model="demo", input=QUESTION, max_output_tokens=2)
    assert answered.usage is not None
    assert response.input_tokens == answered.usage.input_tokens


@pytest.mark.parametrize("mode", ["plain", "chain", "tree"])
def test_a_token_that_ends_this_answer_alone_is_no_text(mode: str) -> None:
    engine = demo_pair.new_engine()
    tokenizer, knobs = engine.target.tokenizer, Knobs().replace(mode=mode)
    ids = engine.target.template.render([{"role": "user", "content": QUESTION}], thinking=False)
    prompt = Prompt(tuple(tokenizer.encode(ids)), ids, opens_thinking=False, stable=0)
    _, text, tokens = asked(QUESTION)
    assert text == "12 + 7 = 19."

    def answered(ends: tuple[str, ...]) -> Answer:
        answer = Answer(engine, tokenizer, prompt, knobs, start, ends=ends)
        for _ in answer:
            pass
        return answer

    def start(prompt: Prompt, knobs: Knobs) -> Start:
        return Start("2026-01-01T00:00:00.000+00:00", "", "", "", "", prompt.ids, knobs)

    assert answered(()).text == text
    # No special token is in the answer, so an ordinary one stands for it.
    equals = next(id for id in tokens if tokenizer.token_bytes(id).strip() == b"=")
    assert tokenizer.special.get("=") is None
    tokenizer.special = {**tokenizer.special, "=": equals}
    try:
        ended = answered(("=", "unknown"))
    finally:
        tokenizer.special = {name: id for name, id in tokenizer.special.items() if name != "="}
    assert ended.report is not None
    assert (ended.report.stop, ended.text.rstrip()) == ("stop token", "12 + 7")
    assert ended.report.tokens == tokens[: tokens.index(equals) + 1]


@pytest.mark.parametrize("stream", [False, True])
def test_text_that_waited_for_more_is_part_of_an_answer_that_ends_early(stream: bool) -> None:
    class Cut(ScriptedEngine):
        def _told_of(self, *given: Any) -> Iterator[Event]:
            yield from (replace(event, stop=None) for event in super()._told_of(*given))

    with running(Cut(lambda prompt: "One line.\n<thi")) as it:
        found = it.openai().chat.completions.create(model="demo", messages=CHAT, stream=stream)
        texts = [one.choices[0].delta.content or "" for one in found] if stream else [found.choices[0].message.content]
    assert "".join(texts) == "One line.\n<thi"
