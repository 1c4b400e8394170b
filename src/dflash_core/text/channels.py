"""Channels: tokens by which some models name the part of an answer that follows, such as their reasoning.

What comes out is the text with think tags around the reasoning, as other models write it, and without the names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dflash_core.text.thinking import CLOSE, OPEN


@dataclass(frozen=True, slots=True)
class Channels:
    """opens: the token before a channel's name. named: the token after it, "" where a line break ends the name. closes:
    the token at the end of a channel's text. begins: the token before the role of a further message, "" where there is
    none. closing: what the model writes to close its reasoning and begin its answer. thinking: the name of the channel
    of its reasoning. efforts: the levels of reasoning that it knows, if it always reasons.
    """

    opens: str
    named: str
    closes: str
    begins: str
    closing: str
    thinking: str = "analysis"
    efforts: tuple[str, ...] = ()

    @property
    def tokens(self) -> tuple[str, ...]:
        """All of its tokens."""
        return tuple(filter(None, (self.opens, self.named, self.closes, self.begins)))


CHANNELS = (
    Channels(
        "<|channel|>", "<|message|>", "<|end|>", "<|start|>",
        closing="<|end|><|start|>assistant<|channel|>final<|message|>", efforts=("low", "medium", "high"),
    ),
    Channels("<|channel>", "", "<channel|>", "", closing="<channel|>", thinking="thought"),
)  # fmt: skip
"""GPT-OSS's ("harmony") and Gemma 4's."""
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
            return b""
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
