"""Endpoints for an attached app: the pair, the lines of all requests, and what changes a running answer."""

from __future__ import annotations

import asyncio

import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from dflash_core.knobs import Knobs
from dflash_core.record import VERSION, Start, encode
from dflash_tui import __version__
from dflash_tui.application.session_state import SessionState, encode_state
from dflash_tui.server.exchange import ALIVE_S, PATIENCE_S, SSE, left
from dflash_tui.server.gate import json_response
from dflash_tui.server.request_error import RequestError
from dflash_tui.server.service import Service
from dflash_tui.server.writer import event

LOOK_S = 0.05


class AnswerChange(msgspec.Struct):
    """`knobs`: all of them; the answer takes those that can change while it is written."""

    stop: bool | None = None
    answer_now: bool | None = None
    knobs: Knobs | None = None


class Watching:
    """Each method answers one path."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def session(self, http: HTTPRequest) -> Response:
        service, engine = self._service, self._service.engine
        defaults = service.served.defaults
        state = SessionState(
            VERSION, __version__, service.name, " + ".join(filter(None, (service.served.target, service.served.draft))),
            engine.context_length, engine.memory(), engine.limits, defaults.knobs_for(defaults.knobs.thinking),
            tuple(engine.notes),
        )  # fmt: skip
        return Response(encode_state(state), media_type="application/json")

    async def events(self, http: HTTPRequest) -> ASGIApp:
        """All lines from now on, as events named `dflash` whose id is the number of the line; `last-event-id` goes on
        after one. Before the first line of a request, an event named `request` says whose it is. A comment says how
        many are lost where a reader is late."""
        if not self._service.settings.watched:
            raise RequestError(
                403, "this server has several keys, so requests are not shown to each other; --share-events shows them",
                code="events_not_shared",
            )  # fmt: skip
        return self._send_lines

    async def _send_lines(self, scope: Scope, receive: Receive, send: Send) -> None:
        requests, last = self._service.requests, Headers(scope=scope).get("last-event-id", "")
        sent = min(int(last), requests.last_line) if last.isdecimal() and len(last) < 16 else requests.last_line
        await send({"type": "http.response.start", "status": 200, "headers": list(SSE)})
        gone = asyncio.ensure_future(left(receive))
        idle = ALIVE_S
        try:
            while not gone.done() and not self._service.worker.ending:
                lines, lost = requests.after(sent)
                data = f": {lost} lines are lost\n\n".encode() if lost else b""
                for one in lines:
                    if isinstance(one.line, Start):
                        of = one.request
                        about = {"client": of.client, "path": of.path, "model": of.model}
                        data += event(msgspec.json.encode(about), "request")
                    data += b"id: %d\n" % one.number + event(encode(one.line), "dflash")
                    sent = one.number
                idle += LOOK_S
                if data or idle >= ALIVE_S:
                    idle = 0.0
                    message = {"type": "http.response.body", "body": data or b": nothing\n\n", "more_body": True}
                    await asyncio.wait_for(send(message), PATIENCE_S)
                await asyncio.sleep(LOOK_S)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except (OSError, TimeoutError):
            pass  # of a client that no longer reads
        finally:
            gone.cancel()

    async def change(self, http: HTTPRequest) -> Response:
        request = await self._service.read(http, AnswerChange)
        number = http.path_params["number"]
        job = self._service.worker.find(number)
        if job is None or not (self._service.settings.watched or job.key == http.scope["key"]):
            raise RequestError(404, f"no answer of the number {number} is waiting or running", code="not_found")
        if request.knobs is not None:
            job.change(request.knobs)
        if request.answer_now:
            job.answer_now()
        if request.stop:
            job.cancel()
        return json_response({"answer": number})
