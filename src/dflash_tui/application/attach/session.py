"""What sessions over a server share: the history is here and sent whole with each question; the decoder is there."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from dflash_core.errors import DFlashError
from dflash_core.events import Piece
from dflash_core.knobs import Knobs
from dflash_core.messages import Call, Message, arguments_of
from dflash_core.record import Line, TurnRecord, Turns
from dflash_core.turn_stats import TurnReport
from dflash_tui.application.attach.reading import at, text
from dflash_tui.application.attach.server import AttachedServer, Stream
from dflash_tui.application.session import NOT_HERE, OnPrefill, TurnLike, WithoutDecoder

MAX_CALLS = 64
"""More in one answer are not taken."""


class StreamedTurn:
    """An answer that comes from a server as a stream. Its calls are those of OpenAI's chat API, or Ollama's."""

    def __init__(self, session: ServerSession, stream: Stream, on_prefill: OnPrefill | None) -> None:
        self._session, self._stream, self._on_prefill = session, stream, on_prefill
        self.report: TurnReport | None = None
        self.record: TurnRecord | None = None
        self.text = self.thinking = self.calling = ""
        self.calls: tuple[Call, ...] = ()
        self._calls: dict[int, list[str]] = {}  # id, name, and parts of the arguments; by their index

    def __iter__(self) -> Iterator[Piece]:
        try:
            yield from self.pieces()
        finally:
            # Also of what was cut off: the text that came stays.
            self.settle()
            self.end(cut=self.report is None or self.report.stop != "stop token")
            self._session.ended(self)

    def take(self, pieces: Iterable[Mapping[str, Any]]) -> None:
        """Objects of `tool_calls`. One without an index is a call of its own; arguments are a part of a JSON text, or
        an object."""
        for one in pieces:
            name, arguments, place = text(one, "function.name"), at(one, "function.arguments"), one.get("index")
            place = place if isinstance(place, int) else len(self._calls)
            if place not in self._calls:
                if not name or len(self._calls) >= MAX_CALLS:
                    continue
                self._calls[place] = [text(one, "id") or f"call_{secrets.token_hex(8)}", name]
            if arguments:
                self._calls[place].append(arguments if isinstance(arguments, str) else json.dumps(arguments))
            self.calling = self._calls[place][1]

    def end(self, *, cut: bool) -> None:
        """The answer is over. Of one that was cut off, a call whose arguments are no JSON is left out."""
        self.calling = ""
        calls = [(id, name, "".join(arguments)) for _, (id, name, *arguments) in sorted(self._calls.items())]
        self.calls = tuple(Call(id, name, arguments_of(it)) for id, name, it in calls if not cut or _whole(it))

    def pieces(self) -> Iterator[Piece]:
        """The pieces of the stream; sets the report. Raises AttachError."""
        raise NotImplementedError

    def settle(self) -> None:
        """Nothing more comes."""

    def watched(self, line: Line) -> None:
        """Pass a line of the record to those who watch."""
        for watcher in self._session.watchers:
            watcher(line)

    def stop(self) -> None:
        """Leave; the server ends an answer that nobody reads."""
        self._stream.cut()

    def answer_now(self) -> None:
        """No effect: no other engine ends its reasoning on request."""

    def change(self, knobs: Knobs) -> None:
        """A request to another engine cannot be changed."""


class ServerSession(WithoutDecoder):
    """A session over a server."""

    refusal = NOT_HERE

    def __init__(self, server: AttachedServer, title: str) -> None:
        super().__init__(f"{title} at {server.url}")
        self.server = server

    def ask(self, prompt: str | Sequence[Message], knobs: Knobs, *, on_prefill: OnPrefill | None = None) -> TurnLike:
        asked = (Message("user", prompt),) if isinstance(prompt, str) else prompt
        return self._begin((*self.messages, *asked), knobs, on_prefill)

    def retry(self, knobs: Knobs, *, on_prefill: OnPrefill | None = None) -> TurnLike:
        asks = ("user", "tool")
        last = max((n for n, message in enumerate(self.messages) if message.role in asks), default=None)
        if last is None:
            raise DFlashError("nothing to retry: no question has been asked yet")
        return self._begin(self.messages[: last + 1], knobs, on_prefill)

    def _begin(self, messages: tuple[Message, ...], knobs: Knobs, on_prefill: OnPrefill | None) -> TurnLike:
        turn = self.turn(messages, knobs, on_prefill)
        self.messages = messages  # a turn that could not begin leaves them
        return turn

    def turn(self, messages: tuple[Message, ...], knobs: Knobs, on_prefill: OnPrefill | None) -> TurnLike:
        """The answer to the last message."""
        raise NotImplementedError

    def ended(self, turn: TurnLike) -> None:
        """Called by a turn when it ends."""
        self.messages += (Message("assistant", turn.text, turn.thinking, turn.report, tuple(turn.calls)),)
        if turn.record is not None:
            self.turns.append(turn.record)

    def offered(self) -> dict[str, Any]:
        """The field of a request that offers the tools."""
        return {"tools": list(self.tools)} if self.tools else {}

    def clear(self) -> None:
        self.messages, self.turns = (), Turns()


def sent(messages: Sequence[Message], thinking: str = "reasoning_content") -> list[dict[str, Any]]:
    """Messages as APIs take them; reasoning under the name `thinking`."""
    found = []
    for one in messages:
        fields: dict[str, Any] = {"role": one.role, "content": one.content}
        if one.thinking:
            fields[thinking] = one.thinking
        if one.calls:
            fields["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_json}}
                for call in one.calls
            ]
        if one.role == "tool":
            fields["tool_call_id"] = one.call_id
        found.append(fields)
    return found


def _whole(arguments: str) -> bool:
    with suppress(ValueError, RecursionError):
        return isinstance(json.loads(arguments), dict)
    return False
