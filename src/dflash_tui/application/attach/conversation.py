"""What sessions over a server share: the history is here and sent whole with each question; the decoder is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from dflash_core.errors import DFlashError
from dflash_core.knobs import Knobs
from dflash_core.lab.experiment import Design
from dflash_core.messages import Call, Message
from dflash_core.record import Line, TurnRecord, Turns
from dflash_core.text.template_values import NO_TOOLS, Tools
from dflash_core.turn_stats import TurnReport
from dflash_tui.application.attach.calls import StreamedCalls
from dflash_tui.application.attach.server import AttachError, Stream
from dflash_tui.application.requests import Requests
from dflash_tui.application.session import NOT_HERE, OnPrefill, TurnLike


class StreamedTurn:
    """An answer that comes from a server as a stream. A subclass iterates over it."""

    def __init__(self, conversation: SentConversation, stream: Stream, on_prefill: OnPrefill | None) -> None:
        self._stream, self._on_prefill = stream, on_prefill
        self._watchers = conversation.watchers
        self.streamed = StreamedCalls()
        self.report: TurnReport | None = None
        self.record: TurnRecord | None = None
        self.text = self.thinking = ""

    def watched(self, line: Line) -> None:
        """Pass a line of the record to those who watch."""
        for watcher in self._watchers:
            watcher(line)

    @property
    def calls(self) -> tuple[Call, ...]:
        return self.streamed.calls

    @property
    def calling(self) -> str:
        return self.streamed.calling


class SentConversation:
    """A subclass starts the turns."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.watchers: list[Callable[[Line], None]] = []
        self.messages: tuple[Message, ...] = ()
        self.tools: Tools = NO_TOOLS
        self.tools_note = ""

    def set_messages(self, messages: Sequence[Message]) -> None:
        self.messages = tuple(messages)

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
        self.messages = messages
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

    def reading(self, knobs: Knobs) -> None:
        """Only the server knows what it would read again."""

    def clear(self) -> None:
        """Begin an empty one."""
        self.messages = ()
        self.turns = Turns()


class WithoutDecoder:
    """The part of a session that needs the decoder in this process."""

    conversation: SentConversation
    missing: Mapping[str, str] = {}

    @property
    def turns(self) -> Turns:
        return self.conversation.turns

    def clear(self) -> None:
        self.conversation.clear()

    def forget_learned(self) -> NoReturn:
        raise AttachError(NOT_HERE)

    def watch(self, requests: Requests) -> bool:
        return False

    def leave(self) -> None:
        """The state of the conversation is the server's."""

    def cancel(self) -> None:
        """Nothing runs here but the turn."""

    def decoder(self) -> NoReturn:
        raise AttachError(NOT_HERE)

    def experiment(self, design: Design) -> NoReturn:
        raise AttachError(NOT_HERE)

    def what_if(
        self, record: TurnRecord, budgets: Sequence[int], drafter: str = "", p_min: float | None = None
    ) -> NoReturn:
        raise AttachError(NOT_HERE)


def sent(messages: Sequence[Message], thinking: str = "reasoning_content") -> list[dict[str, Any]]:
    """Messages as APIs take them; reasoning under the name `thinking`."""
    return [{"role": one.role, "content": one.content} | _beside(one, thinking) for one in messages]


def _beside(message: Message, thinking: str) -> dict[str, Any]:
    """The fields that few messages have."""
    fields: dict[str, Any] = {thinking: message.thinking} if message.thinking else {}
    if message.calls:
        fields["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_json}}
            for call in message.calls
        ]
    return fields | ({"tool_call_id": message.call_id} if message.role == "tool" else {})
