"""A session over the model of a server of dflash-tui. No torch."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any

from dflash_core.errors import DFlashError, FormatError
from dflash_core.events import Piece
from dflash_core.knobs import Knobs
from dflash_core.limits import Limits
from dflash_core.memory import HOST, MemoryBreakdown
from dflash_core.messages import Message
from dflash_core.record import End, Line, Loaded, Read, Start, Step, TurnLine, assemble, decode
from dflash_tui.application.attach.engine import Chunk
from dflash_tui.application.attach.engines import Own
from dflash_tui.application.attach.reading import text
from dflash_tui.application.attach.server import CUT_OFF, AttachedServer, AttachError, Stream
from dflash_tui.application.attach.session import ServerSession, StreamedTurn, sent
from dflash_tui.application.background import Background
from dflash_tui.application.requests import Requests, ServedRequest
from dflash_tui.application.session import OnPrefill
from dflash_tui.application.session_state import decode_state

NOTE = "attached to {url}, {program}; F8, /whatif, /serve and /policy reset need a model in this program"
AGAIN_S, LOOK_S = 2.0, 0.1  # before a broken stream is asked for again; between looks at whether to stop
PATH = "/dflash/events"
PASSING = (429, 502, 503, 504)
"""Statuses of a server that is starting or has too much to do, and of what stands before it."""
API = Own()


class AttachedTurn(StreamedTurn):
    """An answer of the server: text, reasoning and calls from the usual stream, all else from the lines of its record.
    What a line has of text is as the model wrote it, calls included; the same without them comes before the line."""

    _session: AttachedSession

    def __init__(self, session: AttachedSession, stream: Stream, on_prefill: OnPrefill | None) -> None:
        super().__init__(session, stream, on_prefill)
        self._lines: list[TurnLine] = []
        self._shown = 0, 0  # how much of both is in pieces

    def pieces(self) -> Iterator[Piece]:
        for name, data in self._stream:
            if name == "dflash":
                if (piece := self._line(decode(data))) is not None:
                    yield piece
            elif data != b"[DONE]" and (chunk := API.read(data)) is not None:
                self._taken(chunk)
        if not (self._stream.is_cut or (self._lines and isinstance(self._lines[-1], End))):
            raise AttachError(CUT_OFF)

    def settle(self) -> None:
        if self._lines:
            record = next(iter(assemble(self._lines)), None)
            self.record = record if record is not None and record.report is not None else None

    def _line(self, line: Line) -> Piece | None:
        if isinstance(line, Loaded):
            return None
        self._lines.append(line)
        self.watched(line)
        if isinstance(line, End):
            self.report = line.report
        if isinstance(line, (Start, End)):
            return None
        self._session.texts |= line.texts
        (text, thinking), self._shown = self._shown, (len(self.text), len(self.thinking))
        return Piece(line.event, self.text[text:], self.thinking[thinking:], line.at)

    def _taken(self, chunk: Chunk) -> None:
        self.text += chunk.text
        self.thinking += chunk.thinking
        self.take(chunk.calls)
        if chunk.read is not None and self._on_prefill is not None:
            self._on_prefill(*chunk.read)

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

            def send() -> None:
                with suppress(AttachError):  # it has ended meanwhile, or its stream says that the connection is lost
                    self._session.server.fetch(f"/dflash/answers/{number}", change)

            threading.Thread(target=send, name="dflash-attach", daemon=True).start()


class Watching(Background):
    """Puts the lines of all requests but this app's own into `requests`, for the panels, until it is stopped. A server
    that shows them to nobody, or sends other records, ends it; a broken connection is tried again, and the same server
    then goes on where it broke."""

    def __init__(self, server: AttachedServer, requests: Requests, taken: Callable[[Line], None]) -> None:
        """`taken` is called with each line, on the thread."""
        super().__init__("dflash-watch")
        self._server, self._requests, self._taken = server, requests, taken
        self._stream: Stream | None = None
        self._asked: dict[str, Any] = {}  # what is known of the request whose lines come next
        self._request: ServedRequest | None = None
        self._lines: list[TurnLine] = []
        self._source = b""  # which numbers those of the lines are

    def stop(self) -> None:
        super().stop()
        if self._stream is not None:
            self._stream.cut()

    def work(self) -> None:
        last_id = ""
        while not self.stopping:
            self._stream = stream = Stream(self._server, PATH, last_id=last_id)
            if self._stop.is_set():  # before there was a stream to cut
                return
            try:
                for name, data in stream:
                    last_id = stream.last_id
                    self._event(name, data)
            except FormatError:
                return
            except AttachError as error:
                if error.status and error.status not in PASSING:
                    return
                if not stream.headers and not error.status:
                    self._gone()  # nobody is there
            end = time.monotonic() + AGAIN_S
            while not self.stopping and time.monotonic() < end:
                time.sleep(LOOK_S)

    def _event(self, name: str, data: bytes) -> None:
        if name == "request":
            found = json.loads(data)
            self._asked = found if isinstance(found, dict) else {}
        elif name == "lines" and data != self._source:
            self._gone()  # it is another one, or was started again
            self._source = data
        elif name == "dflash" and text(self._asked, "client") != self._server.agent:
            self._line(decode(data))

    def _line(self, line: Line) -> None:
        if isinstance(line, Loaded):
            return
        if isinstance(line, Start):
            self._gone()
            asked = self._asked
            client, path, model = (text(asked, name) for name in ("client", "path", "model"))
            self._request, self._lines = self._requests.add(client, path, model), []
            self._request.state = "running"
        if self._request is None:
            return  # it began before this was there
        self._lines.append(line)
        self._taken(line)
        self._requests.record(self._request, line)
        if isinstance(line, End):
            record = next(iter(assemble(self._lines)), None)
            why = line.report.stop if line.report is not None else "failed"
            self._requests.over(self._request, why, line.report, record)
            self._request = None

    def _gone(self) -> None:
        """The rest of a request's lines did not come."""
        if self._request is not None:
            self._requests.over(self._request, "lost before its end")
            self._request = None


class AttachedSession(ServerSession):
    """The data that the panels show, from the server, which also finds what it has read of the messages."""

    def __init__(self, server: AttachedServer) -> None:
        """Raises AttachError, FormatError."""
        state = decode_state(server.fetch("/dflash/session"))
        super().__init__(server, state.title)
        self._state, self.knobs, self.context_length = state, state.knobs, state.context_length
        self.notes = (NOTE.format(url=server.url, program=f"dflash-tui {state.program}"), *state.notes)
        self.count = lru_cache(256)(self._count)
        self.texts: dict[int, str] = {}
        self._watching: Watching | None = None

    @property
    def limits(self) -> Limits:
        return self._state.limits

    def turn(self, messages: tuple[Message, ...], knobs: Knobs, on_prefill: OnPrefill | None) -> AttachedTurn:
        taken = self.limits.within(knobs)[0].to_dict().items()
        body = {
            "model": self._state.model,
            **self._prompt(messages, knobs),
            "stream": True,
            "return_progress": True,
            "max_tokens": knobs.max_tokens,
            # All but those that have a field of the API.
            "dflash": {name: value for name, value in taken if name not in ("max_tokens", "thinking")}
            | {"events": True},
        }
        return AttachedTurn(self, Stream(self.server, "/v1/chat/completions", body), on_prefill)

    def _prompt(self, messages: Sequence[Message], knobs: Knobs) -> dict[str, Any]:
        """The fields of a request that the prompt depends on."""
        variables = {"enable_thinking": knobs.thinking}
        return {"messages": sent(messages), "chat_template_kwargs": variables, **self.offered()}

    def preview(self, text: str, knobs: Knobs) -> str:
        body = self._prompt((*self.messages, Message("user", text)), knobs)
        return str(self.server.json("/apply-template", body)["prompt"])

    def memory(self) -> MemoryBreakdown:
        """That of the other machine, as it is now; the last known where it does not answer."""
        with suppress(DFlashError):
            self._state = decode_state(self.server.fetch("/dflash/session"))
        memory = self._state.memory
        return replace(memory, device="the server") if memory.device == HOST else memory

    def _count(self, text: str) -> int:
        return len(self.server.json("/tokenize", {"content": text})["tokens"])

    def token_text(self, token: int) -> str:
        return self.texts.get(token, super().token_text(token))

    def watch(self, requests: Requests) -> bool:
        self._watching = Watching(self.server, requests, self._seen)
        self._watching.start()
        return True

    def _seen(self, line: Line) -> None:
        if isinstance(line, (Read, Step)):
            self.texts |= line.texts

    def leave(self) -> None:
        if self._watching is not None:
            self._watching.stop()
