"""Carries one answer to its client, streamed or whole, and cancels it when the client goes away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Protocol

from starlette.types import Receive, Scope, Send

from dflash_core.clean import one_line
from dflash_core.errors import DFlashError, GrammarError
from dflash_core.events import PrefillEvent
from dflash_core.text.tool_calls.parts import Part
from dflash_tui.server.body import ClientGoneError
from dflash_tui.server.gate import answer_json
from dflash_tui.server.job import Job
from dflash_tui.server.request_error import RequestError, invalid
from dflash_tui.server.updates import Ended, Failed, Reading, Recorded, Update
from dflash_tui.server.worker import Worker

ALIVE_S = 5.0
"""How often a client that waits hears something."""
PATIENCE_S = 60.0
"""How long a client may read nothing."""
SSE = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


class Writer(Protocol):
    """Writes an answer in one dialect: the events of a stream, or one object."""

    def waits(self, place: int, waiting: int, read: Reading | None) -> bytes:
        """The answer has not begun: its place in the queue, 0 once it is its turn, or how much of the prompt is
        read."""

    def progress(self, read: Reading) -> bytes:
        """More of the prompt has been read; b"" where the client did not ask for it."""

    def begin(self, read: PrefillEvent | None) -> bytes:
        """The prompt has been read; None if it never was."""

    def parts(self, parts: Sequence[Part]) -> bytes:
        """A step's."""

    def end(self, ended: Ended) -> bytes:
        """The answer is over."""

    def failed(self, refusal: RequestError) -> bytes:
        """The engine failed in mid-answer."""

    def whole(self, parts: Sequence[Part], ended: Ended) -> dict[str, Any]:
        """The answer that is not streamed."""


def event(data: bytes, name: str = "") -> bytes:
    """One server-sent event."""
    return b"%sdata: %s\n\n" % (f"event: {name}\n".encode() if name else b"", data)


async def exchange(
    job: Job, worker: Worker, writer: Writer, scope: Scope, receive: Receive, send: Send, *, streamed: bool
) -> None:
    """Queue the job and answer with what comes of it. Raises RequestError before the response has begun."""
    scope["before"] = worker.submit(job)
    client = _Client(job, worker, writer, send)
    gone = asyncio.create_task(_gone(receive))
    work = asyncio.create_task(client.stream() if streamed else client.whole())
    try:
        await asyncio.wait({gone, work}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
    except (OSError, ClientGoneError, TimeoutError):
        pass  # of a client that no longer reads
    finally:
        job.cancel()
        for task in (gone, work):
            task.cancel()
        await asyncio.gather(gone, work, return_exceptions=True)
        scope["log"] |= client.line


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class _Client:
    def __init__(self, job: Job, worker: Worker, writer: Writer, send: Send) -> None:
        self._job, self._worker, self._writer, self._send = job, worker, writer, send
        self._open = False
        self.line: dict[str, Any] = {}
        """For the log."""

    async def whole(self) -> None:
        parts: list[Part] = []
        while True:
            update = await self._job.updates.get()
            if isinstance(update, Failed):
                raise as_refusal(update.error)
            if isinstance(update, Ended):
                self._ended(update)
                return await answer_json(200, self._writer.whole(parts, update), self._send)
            if not isinstance(update, (Reading, Recorded)):
                parts += update.parts

    async def stream(self) -> None:
        read: Reading | None = None
        begun = False
        while True:
            update = await self._next()
            if update is None:
                await self._write(self._writer.waits(*self._worker.place(self._job), read))
            elif isinstance(update, Recorded):
                await self._write(event(update.line, "dflash"))
            elif isinstance(update, Reading):
                read = update
                if note := self._writer.progress(read):
                    await self._write(note)
            elif isinstance(update, Failed):
                refusal = as_refusal(update.error)
                if not self._open:
                    raise refusal
                return await self._write(self._writer.failed(refusal), more=False)
            else:
                first = b"" if begun else self._writer.begin(None if isinstance(update, Ended) else update.read)
                begun = True
                if isinstance(update, Ended):
                    self._ended(update)
                    return await self._write(first + self._writer.end(update), more=False)
                await self._write(first + self._writer.parts(update.parts))

    async def _next(self) -> Update | None:
        """The next update; None where nothing came for a while before the answer."""
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(self._job.updates.get(), ALIVE_S)
        return None

    async def _write(self, data: bytes, *, more: bool = True) -> None:
        if not self._open:
            self._open = True
            await self._send({"type": "http.response.start", "status": 200, "headers": list(SSE)})
        if data or not more:
            message = {"type": "http.response.body", "body": data, "more_body": more}
            await asyncio.wait_for(self._send(message), PATIENCE_S)

    def _ended(self, ended: Ended) -> None:
        self.line = logged(ended)


def as_refusal(error: Exception) -> RequestError:
    """The error that a client gets for a failure during its answer."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, GrammarError):  # the request's own fault: the same one would fail again
        return invalid(one_line(str(error)))
    if isinstance(error, DFlashError):
        return RequestError(500, one_line(str(error)), code="engine_failed")
    return RequestError(500, "the engine failed; the server's log has the reason", code="internal_error")


def logged(ended: Ended) -> dict[str, Any]:
    """What the log says of an answer: figures alone, none of its text."""
    report = ended.report
    if report is None:
        return {"stop": "cancelled"}
    stats = report.stats
    return {
        "prompt": stats.prompt_tokens,
        "cached": stats.reused_tokens,
        "tokens": ended.tokens,
        "mode": report.mode,
        "accept": [round(rate, 3) for rate in stats.accept_rate_by_depth],
        "per_step": round(stats.acceptance_length, 3),
        "stop": ended.why,
    }
