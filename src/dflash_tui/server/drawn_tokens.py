"""The tokens of an answer's text with their probabilities, handed out as their text is."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any, Self

from msgspec.structs import replace

from dflash_core.log_probs import Drawn, LogProbs
from dflash_core.text.prompt import Prompt
from dflash_core.text.thinking import ThinkingSplit
from dflash_core.text.tokenizer import THINK_TAGS, Detokenizer, Tokenizer
from dflash_core.text.tool_calls.parts import CallStart, Part, Text, Thinking

INSERTED = -9999.0
"""What the API writes in place of minus infinity: for tokens that were not drawn."""


class DrawnText(Text, frozen=True):
    """A piece of the answer's text, and the tokens that begin in it, as the API writes them."""

    tokens: tuple[dict[str, Any], ...] = ()

    def with_more(self, more: Sequence[Self]) -> Self:
        pieces = (self, *more)
        tokens = tuple(token for one in pieces for token in one.tokens)
        return replace(self, text="".join(one.text for one in pieces), tokens=tokens)


class DrawnTokens:
    """Reasoning, tags, calls and tokens without a text are left out. `log_probs` is filled by the decoder."""

    def __init__(self, tokenizer: Tokenizer, log_probs: LogProbs, prompt: Prompt) -> None:
        self._tokenizer, self._log_probs = tokenizer, log_probs
        self._detokenizer, self._split = Detokenizer(tokenizer), ThinkingSplit(prompt.opens_thinking)
        self._split.push(self._detokenizer.push(prompt.answered))
        self._tags = {tokenizer.special.get(tag) for tag in THINK_TAGS}
        self._seen = self._sent = 0  # tokens seen; bytes of text handed out, and of calls before it
        self._written = bytearray()  # of the tokens that are text or calls
        self._called = False  # a call follows the text that was handed out
        self._waiting: list[tuple[int, Drawn]] = []  # with the byte of the text that each begins at
        self._undecided: list[tuple[Drawn, bytes]] = []  # before the answer: its beginning, or that of a tag
        self._after_block = self._split.inside

    def with_tokens(self, parts: Sequence[Part]) -> list[Part]:
        """The parts, with the tokens that begin in their text."""
        for one in self._log_probs.drawn[self._seen :]:
            self._see(one)
        self._seen = len(self._log_probs.drawn)
        found: list[Part] = []
        for part in parts:
            if isinstance(part, CallStart):
                self._called = True
            if isinstance(part, Text):
                data = part.text.encode()
                if self._called and (at := self._written.rfind(data, self._sent)) >= 0:  # what came last is this text
                    self._waiting = [(begins, one) for begins, one in self._waiting if begins >= at]
                    self._sent, self._called = at, False
                self._sent += len(data)
                if self._sent > len(self._written):
                    self._decide()  # an answer of nothing but white space
                ready = tuple(one for begins, one in self._waiting if begins < self._sent)
                self._waiting = self._waiting[len(ready) :]
                part = DrawnText(part.text, tuple(_entry(one, self._tokenizer) for one in ready))
            found.append(part)
        return found

    def _see(self, one: Drawn) -> None:
        inside = self._split.inside
        self._split.push(self._detokenizer.push((one.token,)))
        if inside or self._split.inside or one.token in self._tags:
            self._undecided.clear()
            self._after_block = True
            return
        if one.token not in self._tokenizer.hidden:
            self._undecided.append((one, self._tokenizer.token_bytes(one.token)))
        if self._split.begun:
            self._decide()

    def _decide(self) -> None:
        """What was seen is text of the answer."""
        ready, self._undecided = self._undecided, []
        data = b"".join(written for _, written in ready)
        # Line breaks between reasoning and answer are no text.
        left = 0 if self._written or not self._after_block else len(data) - len(data.lstrip(b"\n"))
        for one, written in ready:
            size = max(len(written) - left, 0)
            left = max(left - len(written), 0)
            if size:
                self._waiting.append((len(self._written), one))
                self._written += written[-size:]


def _entry(one: Drawn, tokenizer: Tokenizer) -> dict[str, Any]:
    top = [_named(token, log_prob, tokenizer) for token, log_prob in one.top]
    log_prob = INSERTED if one.log_prob is None else one.log_prob
    return _named(one.token, log_prob, tokenizer) | {"top_logprobs": top}


def _named(token: int, log_prob: float, tokenizer: Tokenizer) -> dict[str, Any]:
    data = tokenizer.token_bytes(token)
    return {"token": data.decode("utf-8", "replace"), "logprob": log_prob, "bytes": list(data)}


def listed(parts: Sequence[Part]) -> dict[str, Any]:
    """The object `logprobs` of chat completions, for some parts."""
    return {"content": [one for part in parts if isinstance(part, DrawnText) for one in part.tokens], "refusal": None}


class LegacyLogProbs:
    """Writes the object `logprobs` of completions, piece by piece: `text_offset` counts characters of the answer."""

    def __init__(self) -> None:
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def listed(self, parts: Sequence[Part]) -> dict[str, Any]:
        """The tokens of some parts; reasoning has none, but counts as text."""
        found: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for part in parts:
            if isinstance(part, Thinking):
                self._offset += len(part.text)
            for one in part.tokens if isinstance(part, DrawnText) else ():
                found["text_offset"].append(self._offset)
                self._offset += len(self._decoder.decode(bytes(one["bytes"])))
                found["tokens"].append(_spelt(one))
                found["token_logprobs"].append(one["logprob"])
                found["top_logprobs"].append({_spelt(each): each["logprob"] for each in (*one["top_logprobs"], one)})
        return found


def _spelt(one: dict[str, Any]) -> str:
    """A token as this API writes it: part of a character as its bytes, so that no two tokens are spelt alike."""
    data = bytes(one["bytes"])
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
