"""A session over the model of a server of dflash-tui: the history is here, the decoder there. No torch."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, NoReturn

from dflash_core.clean import one_line
from dflash_core.errors import DFlashError
from dflash_core.events import Piece
from dflash_core.knobs import Knobs
from dflash_core.lab.experiment import Design
from dflash_core.limits import Limits
from dflash_core.memory import MemoryBreakdown
from dflash_core.messages import Call, Message
from dflash_core.progress import Progress
from dflash_core.record import End, Line, Loaded, Start, TurnLine, TurnRecord, assemble, decode
from dflash_core.text.template_values import NO_TOOLS, Tools
from dflash_core.turn_stats import FoundRow, TurnReport
from dflash_core.turns import Turns
from dflash_tui.application.attached_server import AttachedServer, AttachError, Stream
from dflash_tui.application.session import Loader, LoadRequest, OnPrefill, SessionLike
from dflash_tui.application.session_state import SessionState, decode_state

NOT_HERE = "the model is on the server: measurements, other models and serving need it in this program"
NO_TOOLS_HERE = "the model is on the server, to which this program does not offer tools yet"
NOTE = "attached to {url}, {program}; not from here: measurements (F8, what-if), other models, /serve, /policy reset"


class AttachedTurn:
    """An answer of the server, from the lines of its record."""

    def __init__(
        self,
        conversation: AttachedConversation,
        stream: Stream,
        tell: Callable[[str, dict[str, Any]], None],
        on_prefill: OnPrefill | None,
    ) -> None:
        self._conversation, self._stream, self._tell_server = conversation, stream, tell
        self._on_prefill = on_prefill
        self._lines: list[TurnLine] = []
        self.report: TurnReport | None = None
        self.record: TurnRecord | None = None
        self.text = self.thinking = self.calling = ""
        self.calls: tuple[Call, ...] = ()

    def __iter__(self) -> Iterator[Piece]:
        try:
            for name, data in self._stream:
                if name != "dflash":
                    self._chunk(data)
                elif (piece := self._line(decode(data))) is not None:
                    yield piece
        finally:
            # Also of what was cut off: the text that came stays.
            if self._lines:
                self.record = next(iter(assemble(self._lines)), None)
                if self.record is not None and self.record.report is None:
                    self.record = None
            self._conversation.ended(self)

    def _line(self, line: Line) -> Piece | None:
        if isinstance(line, Loaded):
            return None
        self._lines.append(line)
        for watcher in self._conversation.watchers:
            watcher(line)
        if isinstance(line, Start):
            return None
        self.text += line.text
        self.thinking += line.thinking
        if isinstance(line, End):
            self.report = line.report
            return None
        self._conversation.texts |= line.texts
        return Piece(line.event, line.text, line.thinking, line.at)

    def _chunk(self, data: bytes) -> None:
        """A chunk of the usual stream: how much of the prompt is read, or why nothing more comes."""
        if data == b"[DONE]":
            return
        found = json.loads(data)
        progress, error = found.get("prompt_progress"), found.get("error")
        if error is not None:
            raise AttachError(f"the server: {one_line(str(error.get('message', error)))}")
        if progress is not None and self._on_prefill is not None:
            self._on_prefill(progress["processed"], progress["total"])

    def stop(self) -> None:
        """End it on the server, which then sends its figures; before it has begun, leave."""
        if "x-dflash-answer" in self._stream.headers:
            self._tell(stop=True)
        else:
            self._stream.cut()

    def answer_now(self) -> None:
        self._tell(answer_now=True)

    def change(self, knobs: Knobs) -> None:
        self._tell(knobs=knobs.to_dict())

    def _tell(self, **change: Any) -> None:
        """On a thread of its own: the app's must not wait for a network."""
        if (number := self._stream.headers.get("x-dflash-answer")) is not None:
            path = f"/dflash/answers/{number}"
            threading.Thread(target=self._tell_server, args=(path, change), name="dflash-attach", daemon=True).start()


class AttachedConversation:
    """The messages are sent whole with each question; the server finds what it has read of them."""

    def __init__(self, server: AttachedServer, model: str, limits: Limits) -> None:
        self._server, self._model, self._limits = server, model, limits
        self.turns = Turns()
        self.watchers: list[Callable[[Line], None]] = []
        self.messages: tuple[Message, ...] = ()
        self.texts: dict[int, str] = {}
        self.tools: Tools = NO_TOOLS
        self.tools_note = NO_TOOLS_HERE

    def set_messages(self, messages: Sequence[Message]) -> None:
        self.messages = tuple(messages)

    def ask(
        self, prompt: str | Sequence[Message], knobs: Knobs, *, on_prefill: OnPrefill | None = None
    ) -> AttachedTurn:
        asked = (Message("user", prompt),) if isinstance(prompt, str) else prompt
        return self._turn((*self.messages, *asked), knobs, on_prefill)

    def retry(self, knobs: Knobs, *, on_prefill: OnPrefill | None = None) -> AttachedTurn:
        asks = ("user", "tool")
        last = max((n for n, message in enumerate(self.messages) if message.role in asks), default=None)
        if last is None:
            raise DFlashError("nothing to retry: no question has been asked yet")
        return self._turn(self.messages[: last + 1], knobs, on_prefill)

    def _turn(self, messages: tuple[Message, ...], knobs: Knobs, on_prefill: OnPrefill | None) -> AttachedTurn:
        body = {
            "model": self._model,
            "messages": _sent(messages),
            "stream": True,
            "return_progress": True,
            "max_tokens": knobs.max_tokens,
            "chat_template_kwargs": {"enable_thinking": knobs.thinking},
            "dflash": _asked(self._limits.within(knobs)[0]) | {"events": True},
        }
        self.messages = messages
        stream = self._server.stream("/v1/chat/completions", body)
        return AttachedTurn(self, stream, self._tell, on_prefill)

    def _tell(self, path: str, change: dict[str, Any]) -> None:
        with suppress(AttachError):  # it has ended meanwhile, or its stream says that the connection is lost
            self._server.post(path, change)

    def ended(self, turn: AttachedTurn) -> None:
        """Called by a turn when it ends."""
        self.messages += (Message("assistant", turn.text, turn.thinking, turn.report),)
        if turn.record is not None:
            self.turns.append(turn.record)

    def reading(self, knobs: Knobs) -> None:
        """Only the server knows what it would read again."""

    def preview(self, text: str, knobs: Knobs) -> str:
        messages = _sent((*self.messages, Message("user", text)))
        variables = {"enable_thinking": knobs.thinking}
        found = self._server.post("/apply-template", {"messages": messages, "chat_template_kwargs": variables})
        return str(json.loads(found)["prompt"])


def _sent(messages: Sequence[Message]) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []
    for one in messages:
        fields: dict[str, Any] = {"role": one.role, "content": one.content}
        if one.thinking:
            fields["reasoning_content"] = one.thinking
        if one.calls:
            fields["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_json}}
                for call in one.calls
            ]
        if one.role == "tool":
            fields["tool_call_id"] = one.call_id
        sent.append(fields)
    return sent


def _asked(knobs: Knobs) -> dict[str, Any]:
    """All knobs, but those that have a field of the API."""
    return {name: value for name, value in knobs.to_dict().items() if name not in ("max_tokens", "thinking")}


class AttachedSession:
    """The data that the panels show, from the server."""

    def __init__(self, server: AttachedServer, state: SessionState) -> None:
        self._server, self._state = server, state
        self.conversation = AttachedConversation(server, state.model, state.limits)
        self.title = f"{state.title} at {server.url}"
        self.context_length = state.context_length
        said = NOTE.format(url=server.url, program=f"dflash-tui {state.program}")
        self.notes = (said, *state.notes)
        self.knobs = state.knobs
        self.count = lru_cache(256)(self._count)

    @property
    def limits(self) -> Limits:
        return self._state.limits

    @property
    def turns(self) -> Turns:
        return self.conversation.turns

    def memory(self) -> MemoryBreakdown:
        """That of the other machine, as it is now; the last known where it does not answer."""
        try:
            self._state = replaced = decode_state(self._server.get("/dflash/session"))
        except DFlashError:
            return self._state.memory
        return replaced.memory

    def _count(self, text: str) -> int:
        return len(json.loads(self._server.post("/tokenize", {"content": text}))["tokens"])

    def token_text(self, token: int) -> str:
        return self.conversation.texts.get(token, f"<id {token}>")

    def clear(self) -> None:
        self.conversation.messages = ()
        self.conversation.turns = Turns()

    def learned(self) -> Sequence[FoundRow]:
        """As of the last answer."""
        report = self.turns[-1].report if self.turns else None
        return report.learned if report is not None else ()

    def forget_learned(self) -> NoReturn:
        raise AttachError(NOT_HERE)

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


def attaching(url: str, key: str) -> Callable[[LoadRequest], Loader]:
    """What makes loaders: each attaches to the server."""

    def load(progress: Progress) -> SessionLike:
        server = AttachedServer(url, key)
        progress(f"asking {server.url}", 0.0)
        return AttachedSession(server, decode_state(server.get("/dflash/session")))

    return lambda request: load


def refuse(request: LoadRequest) -> NoReturn:
    """For loads of other models."""
    raise AttachError(NOT_HERE)
