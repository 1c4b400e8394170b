"""The ids of answers as the model wrote them, for the prompts that have these answers in their history.

A history comes back as text. Encoded again it may be other tokens: where the model did not write the shortest ones, or
where a template writes a call with other white space. Then the state behind the answer is of no use, and the model
sees a history that it did not write. The ids are put back where the message is unchanged.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dflash_core.messages import Message
from dflash_core.text.prompt import Prompt
from dflash_core.text.thinking import ThinkingSplit
from dflash_core.text.tokenizer import Detokenizer, Tokenizer

MAX_BYTES = 64 << 20
Key = tuple[bytes, int]


@dataclass(frozen=True, slots=True)
class _Answer:
    """`prompt`: a digest of the prompt that was answered, and its length."""

    prompt: bytes
    length: int
    ids: npt.NDArray[np.int32]


class WrittenAnswers:
    """The newest answers, up to `max_bytes`: complete ones by their message, those that were cut by their prompt.
    Thread-safe."""

    def __init__(self, tokenizer: Tokenizer, max_bytes: int = MAX_BYTES) -> None:
        self._tokenizer, self._max_bytes = tokenizer, max_bytes
        # By message and its place, or by the prompt; the newest last.
        self._answers: OrderedDict[Key, tuple[_Answer, ...]] = OrderedDict()
        self._nbytes = 0
        self._lock = threading.Lock()

    def add(self, prompt: Sequence[int], place: int, message: Message, ids: Sequence[int]) -> None:
        """The answer to a prompt, from its first id to the one that ended it. `place`: of its message in a history."""
        if ids.count(ids[-1]) > 1:
            return  # its end could not be found in a prompt
        self._add(_key(message, place), prompt, ids)

    def add_cut(self, prompt: Sequence[int], ids: Sequence[int]) -> None:
        """What there is of an answer that did not come to its end."""
        self._add((_digest(prompt), len(prompt)), prompt, ids)

    def _add(self, key: Key, prompt: Sequence[int], ids: Sequence[int]) -> None:
        answer = _Answer(_digest(prompt), len(prompt), np.asarray(ids, np.int32))
        with self._lock:
            before = self._answers.pop(key, ())
            self._answers[key] = now = (*(one for one in before if one.prompt != answer.prompt), answer)
            self._nbytes += _nbytes(now) - _nbytes(before)
            while self._nbytes > self._max_bytes:
                self._nbytes -= _nbytes(self._answers.popitem(last=False)[1])

    def begun(self, prompt: Prompt, message: Message) -> Sequence[int]:
        """The ids of `message`, if it is what the newest answer to `prompt` began with, also where its client got less
        than was written; () if it is not."""
        with self._lock:
            found = self._answers.get((_digest(prompt.ids), len(prompt.ids)), ())
        given = message.thinking, message.content
        for answer in found:
            ids: list[int] = answer.ids.tolist()
            text, split = Detokenizer(self._tokenizer), ThinkingSplit(prompt.opens_thinking)
            thinking = content = ""
            for count, id in enumerate(ids, 1):
                more = split.push(text.push((id,)))
                thinking, content = thinking + more[0], content + more[1]
                if (thinking, content) == given:
                    return ids[:count]
            more = split.push(text.finish())
            rest = split.finish()
            if (thinking + more[0] + rest[0], content + more[1] + rest[1]) == given:
                return ids
        return ()

    def put_back(self, prompt: Prompt, messages: Sequence[Message]) -> Prompt:
        """The prompt for `messages` with the answers in it as they were written.

        An answer is put back where the prompt begins with all that it answered, reasoning that the template opened
        included, and where its reasoning is in the prompt: what a template leaves out stays out.
        """
        for place, message in enumerate(messages):
            if message.role != "assistant":
                continue
            with self._lock:
                answers = self._answers.get(_key(message, place), ())
            for answer in reversed(answers):
                if answer.length < len(prompt.ids) and _digest(prompt.ids[: answer.length]) == answer.prompt:
                    prompt = self._with(prompt, message, answer)
                    break
        return prompt

    def _with(self, prompt: Prompt, message: Message, answer: _Answer) -> Prompt:
        begin, ids, own = answer.length, prompt.ids, tuple(answer.ids.tolist())
        if own[-1] not in ids[begin:]:
            return prompt
        end = ids.index(own[-1], begin) + 1
        if message.thinking.strip() not in self._tokenizer.decode(ids[begin:end]):
            return prompt
        more = begin + len(own) - end

        def moved(length: int) -> int:
            return length if length <= begin else length + more if length >= end else begin

        return replace(
            prompt,
            ids=(*ids[:begin], *own, *ids[end:]),
            stable=moved(prompt.stable),
            head=moved(prompt.head),
            continued=moved(prompt.continued),
        )


class Thoughts:
    """The newest reasoning under keys, for clients that send back a key in place of the text. Thread-safe."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes, self._nbytes = max_bytes, 0
        self._texts: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, text: str) -> str:
        """The key of a text, which nobody can guess."""
        key = f"rk_{secrets.token_urlsafe(24)}"
        with self._lock:
            self._texts[key] = text
            self._nbytes += _text_bytes(text)
            while self._nbytes > self._max_bytes:
                self._nbytes -= _text_bytes(self._texts.popitem(last=False)[1])
        return key

    def get(self, key: object) -> str:
        """The text of a key; "" where it is not known any more."""
        with self._lock:
            return self._texts.get(key, "") if isinstance(key, str) else ""


def _text_bytes(text: str) -> int:
    return len(text.encode()) + 500


def _nbytes(answers: Sequence[_Answer]) -> int:
    return sum(one.ids.nbytes + 500 for one in answers)


def _key(message: Message, place: int) -> Key:
    """Of an answer as a client has it: white space around its parts, and the order of arguments, may be another."""
    calls = [(call.name, call.arguments) for call in message.calls]
    parts = json.dumps([message.content.strip(), message.thinking.strip(), calls], sort_keys=True)
    return hashlib.blake2b(parts.encode(), digest_size=16).digest(), place


def _digest(ids: Sequence[int]) -> bytes:
    return hashlib.blake2b(np.asarray(ids, np.int32).tobytes(), digest_size=16).digest()
