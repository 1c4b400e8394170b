"""Log-probabilities of tokens: the target's own, against a pass of the reference over the same ids."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from dflash_core.text.tool_calls.parts import Thinking
from dflash_tui.server.drawn_tokens import DrawnText, LegacyLogProbs
from support import demo_pair
from support.serving import Running

CHAT: list[Any] = [{"role": "user", "content": "What is 12 plus 7?"}]


@cache
def expected(prompt: tuple[int, ...], answer: tuple[int, ...]) -> list[float]:
    """By one pass over prompt and answer, in plain decoding's own session; the answer is the same in each mode."""
    engine = demo_pair.new_engine()
    found = []
    ids = list(prompt)
    for token in answer:
        engine.reset()
        logits = torch.from_numpy(np.asarray(engine.session.prefill(ids, lambda: False))).double()
        found.append(float(torch.log_softmax(logits, -1)[token]))
        ids.append(token)
    return found


@pytest.mark.parametrize("mode", ["plain", "tree"])
def test_they_are_the_target_s_own(server: Running, mode: str) -> None:
    tokenizer = server.service.preparer.tokenizer
    asked: dict[str, Any] = {
        "model": "demo", "messages": CHAT, "logprobs": True, "top_logprobs": 3,
        "extra_body": {"dflash": {"mode": mode}},
    }  # fmt: skip
    choice = server.openai().chat.completions.create(**asked).choices[0]
    assert choice.logprobs is not None
    content = choice.logprobs.content or []
    text = choice.message.content or ""
    assert b"".join(bytes(one.bytes or ()) for one in content).decode() == text
    with server.http() as http:
        shown = http.post("/apply-template", json={"messages": CHAT, "reasoning_effort": "none"}).json()["prompt"]
    answer = tokenizer.encode(text, special=False)
    assert [tokenizer.token_bytes(id).decode() for id in answer] == [one.token for one in content]
    reference = expected(tuple(tokenizer.encode(shown)), tuple(answer))
    assert [one.logprob for one in content] == pytest.approx(reference, abs=2e-3)
    for one in content:
        assert len(one.top_logprobs) == 3
        assert one.top_logprobs[0].token == one.token  # greedy
        assert [other.logprob for other in one.top_logprobs] == sorted(
            (other.logprob for other in one.top_logprobs), reverse=True
        )
    chunks = list(server.openai().chat.completions.create(**asked, stream=True))
    streamed = [one for chunk in chunks if chunk.choices and chunk.choices[0].logprobs
                for one in chunk.choices[0].logprobs.content or []]  # fmt: skip
    assert [one.token for one in streamed] == [one.token for one in content]


DIGIT = {
    "type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"],
    "additionalProperties": False,
}  # fmt: skip


def test_those_of_calls_are_left_out(server: Running) -> None:
    """Regression: text behind a call had the tokens of the call, as many as fit into it."""
    tool: Any = {"type": "function", "function": {"name": "look", "parameters": DIGIT}}
    text_seen = ""
    for limit in (28, 32):  # behind the call, and within a second one
        for stream in (False, True):
            asked: dict[str, Any] = {
                "model": "demo", "messages": [{"role": "user", "content": "Tell me a story."}], "tools": [tool],
                "tool_choice": "required", "logprobs": True, "max_tokens": limit, "stream": stream,
                "extra_body": {"dflash": {"mode": "plain"}},
            }  # fmt: skip
            found = server.openai().chat.completions.create(**asked)
            if stream:
                choices = [chunk.choices[0] for chunk in found if chunk.choices]
                text = "".join(one.delta.content or "" for one in choices)
                tokens = [token.token for one in choices for token in (one.logprobs.content if one.logprobs else ())]
            else:
                text = found.choices[0].message.content or ""
                tokens = [token.token for token in found.choices[0].logprobs.content]
            assert "".join(tokens) == text
            text_seen += text
    assert text_seen, "no answer was cut within a second call"


def test_reasoning_and_what_a_stop_string_cuts_are_left_out(server: Running) -> None:
    asked: dict[str, Any] = {"model": "demo", "messages": CHAT, "logprobs": True}
    thinking = {"chat_template_kwargs": {"enable_thinking": True}, "dflash": {"mode": "plain"}}
    choice = server.openai().chat.completions.create(**asked, extra_body=thinking).choices[0]
    assert choice.logprobs is not None
    assert "".join(one.token for one in choice.logprobs.content or []).strip() == choice.message.content
    cut = server.openai().chat.completions.create(**asked, stop="7 =", extra_body={"dflash": {"mode": "plain"}})
    choice = cut.choices[0]
    assert choice.logprobs is not None
    assert "".join(one.token for one in choice.logprobs.content or []) == choice.message.content


@pytest.mark.parametrize("mode", ["plain", "tree"])
def test_completions_list_them_in_their_own_form(server: Running, mode: str) -> None:
    tokenizer = server.service.preparer.tokenizer
    asked: dict[str, Any] = {
        "model": "demo", "prompt": "The café is naïve — 12 plus", "max_tokens": 12, "logprobs": 2,
        "extra_body": {"dflash": {"mode": mode, "ignore_eos": True}},
    }  # fmt: skip
    choice = server.openai().completions.create(**asked).choices[0]
    found, text = choice.logprobs, choice.text
    assert found is not None
    assert found.tokens
    assert found.token_logprobs
    assert found.top_logprobs
    assert found.text_offset
    assert "".join(found.tokens) == text
    assert [text[at:].startswith(token) for at, token in zip(found.text_offset, found.tokens)] == [True] * len(
        found.tokens
    )
    answer = [id for token in found.tokens for id in tokenizer.encode(token, special=False)]
    reference = expected(tuple(tokenizer.encode(asked["prompt"], special=False)), tuple(answer))
    assert found.token_logprobs == pytest.approx(reference, abs=2e-3)
    for token, log_prob, top in zip(found.tokens, found.token_logprobs, found.top_logprobs):
        assert top[token] == log_prob == max(top.values())  # greedy
        assert 2 <= len(top) <= 3
    chunks = list(server.openai().completions.create(**asked, stream=True))
    pieces = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices and chunk.choices[0].logprobs]
    assert [one for piece in pieces for one in piece.tokens or []] == found.tokens
    assert [one for piece in pieces for one in piece.text_offset or []] == found.text_offset


def test_part_of_a_character_is_spelt_as_bytes() -> None:
    tokens = tuple(
        {"token": "�", "bytes": list(part), "logprob": -1.0, "top_logprobs": []}
        for part in (b"a", b"\xe2\x80", b"\x94", b"b")
    )
    found = LegacyLogProbs().listed([Thinking("hm"), DrawnText("a—b", tokens)])
    assert found["tokens"] == ["a", "bytes:\\xe2\\x80", "bytes:\\x94", "b"]
    assert found["text_offset"] == [2, 3, 3, 4]
