"""Splits what a model writes into its reasoning and its answer, while the text arrives in pieces.

Some models name the part that follows by tokens, as channels. Their text gets think tags around the reasoning, as other
models write it, and loses the names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

OPEN, CLOSE = "<think>", "</think>"
_FENCE = re.compile(r" {0,3}(```|~~~)")
_FENCE_LENGTH = 6  # characters of a line that show whether it is one


def opens_thinking(prompt: str) -> bool:
    """Whether the model goes on inside a think block, because the prompt ends with an opening tag."""
    return prompt.rstrip().endswith(OPEN)


class ThinkingSplit:
    """A think block at the start of the output is reasoning, and one more block after that.

    A tag in the answer counts if it is the only text of a line, outside a fence: an answer about tags quotes them
    within a line or a fence. Each of the two tags counts once; later ones are text. Line breaks around the reasoning,
    and those between reasoning and answer, are dropped. Blocks of reasoning are joined by an empty line.
    """

    def __init__(self, start_inside: bool) -> None:
        self._inside = start_inside
        self._started = False  # whether the present part has anything but leading white space
        self._after_block = start_inside
        self._first = not start_inside  # whether a block would be the first
        self._thought = self._joins = False  # whether there is reasoning; whether an empty line precedes what follows
        self._tags = {OPEN, CLOSE}  # those that still count in the answer
        self._line = ""  # the beginning of the answer's present line, as far as it was returned
        self._fenced = False
        self._pending = ""

    @property
    def inside(self) -> bool:
        return self._inside

    @property
    def begun(self) -> bool:
        """Whether it is certain that the answer has begun, or that the block is open."""
        return self._inside or self._started

    def push(self, text: str) -> tuple[str, str]:
        """The reasoning and the answer that `text` makes certain; what may be part of a tag stays pending."""
        self._pending += text
        thinking = answer = ""
        while True:
            if self._inside:
                part, goes_on = self._take_thinking()
                thinking += part
            elif self._started:
                part, goes_on = self._take_line()
                answer += part
            else:
                goes_on = self._open_or_start()
            if not goes_on:
                return thinking, answer

    def finish(self) -> tuple[str, str]:
        """The pending text; no more text follows."""
        rest, self._pending = self._pending, ""
        if self._inside:
            rest = rest if self._started else rest.lstrip("\n")
            return "\n\n" + rest if rest and self._joins else rest, ""
        if self._started:
            return "", "" if not self._line and self._counts(rest.strip(" \t")) else rest
        return "", rest.lstrip("\n") if self._after_block else rest

    def _take_thinking(self) -> tuple[str, bool]:
        """Take reasoning from the pending text; the second value is true if its block ended."""
        if not self._started:
            self._pending = self._pending.lstrip("\n")
            self._started = bool(self._pending)
        head, tag, rest = self._pending.partition(CLOSE)
        # Line breaks stay pending too: if the tag comes next, they are not part of the reasoning.
        part = head[: len(head) - (0 if tag else partial_match_length(head, (CLOSE,)))].rstrip("\n")
        joint = "\n\n" if part and self._joins else ""
        self._thought |= bool(part)
        self._joins &= not part
        self._pending = rest if tag else head[len(part) :]
        if tag:
            self._inside = self._started = False
            self._after_block = True
        return joint + part, bool(tag)

    def _open_or_start(self) -> bool:
        """Before the answer: enter a block or begin the answer; False while either is still possible."""
        body = self._pending.lstrip()
        tag = next((tag for tag in sorted(self._tags) if body.startswith(tag)), None)
        if tag is not None:
            self._pending = body.removeprefix(tag)
            self._take_tag(tag)
        elif not body or any(tag.startswith(body) for tag in self._tags):
            return False
        else:
            self._started, self._first, self._line = True, False, ""
            self._pending = self._pending.lstrip("\n") if self._after_block else self._pending
        return True

    def _take_line(self) -> tuple[str, bool]:
        """Take of the answer's present line what is there, unless it may be a tag; True where another may follow."""
        line, end, rest = self._pending.partition("\n")
        content = line.strip(" \t")
        if not self._line and not end and any(self._counts(tag) and tag.startswith(content) for tag in (OPEN, CLOSE)):
            return "", False
        if not self._line and self._counts(content) and end:
            self._pending = rest
            self._take_tag(content)
            return "", True
        self._line = (self._line + line)[:_FENCE_LENGTH]
        if end:
            self._fenced ^= _FENCE.match(self._line) is not None
            self._line = ""
        self._pending = rest
        return line + end, bool(end)

    def _counts(self, tag: str) -> bool:
        """Whether a tag that is the only text of a line of the answer counts: a closing one only where a block was."""
        return tag in self._tags and not self._fenced and (tag == OPEN or self._after_block)

    def _take_tag(self, tag: str) -> None:
        if not (tag == OPEN and self._first):
            self._tags.discard(tag)
        self._first = False
        if tag == OPEN:
            self._inside, self._started, self._joins = True, False, self._thought
        else:
            self._after_block = True


def partial_match_length(text: str, ends: Sequence[str]) -> int:
    """How many characters at the end of `text` may be the beginning of one of `ends`."""
    begins = range(max(len(text) - max(map(len, ends), default=0) + 1, 0), len(text))
    return len(text) - next((n for n in begins if any(end.startswith(text[n:]) for end in ends)), len(text))


@dataclass(frozen=True, slots=True)
class Channels:
    """opens: the token before a channel's name. named: the token after it, "" where a line break ends the name. closes:
    the token at the end of a channel's text. begins: the token before the role of a further message, "" where there is
    none. answer: what the model writes before its answer. thinking: the name of the channel of its reasoning, "" where
    `opens` is of reasoning alone and no name follows. efforts:
    the levels of reasoning that it knows, if it always reasons.
    """

    opens: str
    named: str
    closes: str
    begins: str
    answer: str = ""
    thinking: str = "analysis"
    efforts: tuple[str, ...] = ()

    @property
    def tokens(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.opens, self.named, self.closes, self.begins)))

    @property
    def opening(self) -> str:
        """What the model writes to begin its reasoning."""
        return self.opens + (self.thinking + (self.named or "\n") if self.thinking else "")

    @property
    def closing(self) -> str:
        """What the model writes to close its reasoning and begin its answer."""
        return self.closes + (f"{self.begins}assistant" if self.begins else "") + self.answer


CHANNELS = (
    Channels(
        "<|channel|>", "<|message|>", "<|end|>", "<|start|>",
        answer="<|channel|>final<|message|>", efforts=("low", "medium", "high"),
    ),
    Channels("<|channel>", "", "<channel|>", "", thinking="thought"),
    Channels("[THINK]", "", "[/THINK]", "", thinking=""),
    Channels("<seed:think>", "", "</seed:think>", "", thinking=""),
)  # fmt: skip
"""GPT-OSS's ("harmony"), Gemma 4's, Mistral's, and Seed-OSS's."""
CHANNEL_TOKENS = frozenset(token for one in CHANNELS for token in one.tokens)


def channels_of(special: Mapping[str, int]) -> Channels | None:
    """Those of a vocabulary with these special tokens; None where it has none."""
    return next((one for one in CHANNELS if all(token in special for token in one.tokens)), None)


class ChannelReader:
    """Turns the tokens of one answer into bytes."""

    def __init__(self, channels: Channels, special: Mapping[str, int]) -> None:
        self._channels = channels
        self._tokens = {special[token]: token for token in channels.tokens}
        self._name: bytes | None = None  # what was read of a channel's name
        self._inside = False  # reasoning

    def read(self, id: int, text: bytes) -> bytes:
        """The bytes of the next token; `text`: of it as ordinary text."""
        token = self._tokens.get(id, "")
        if token and token in (self._channels.opens, self._channels.begins):
            self._name = b""
            return b"" if self._channels.thinking else self._enter(b"")
        if token == self._channels.named != "":
            return self._enter(b"")
        if token == self._channels.closes:
            inside, self._inside = self._inside, False
            return f"\n{CLOSE}\n\n".encode() if inside else b""
        if self._name is None:
            return text
        self._name += text
        if self._channels.named or b"\n" not in self._name:
            return b""
        return self._enter(self._name.partition(b"\n")[2])

    def _enter(self, rest: bytes) -> bytes:
        """A name has ended; `rest` came with its end."""
        name, self._name = (self._name or b"").strip(), None
        self._inside = name.startswith(self._channels.thinking.encode())
        return f"\n{OPEN}\n".encode() + rest if self._inside else rest
