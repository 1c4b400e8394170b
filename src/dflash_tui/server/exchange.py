"""Carries one answer to its client, streamed or whole, and cancels it when the client goes away."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from dflash_core.clean import one_line
from dflash_core.errors import DFlashError, GrammarError
from dflash_core.record import encode
from dflash_tui.server.body import ClientGoneError
from dflash_tui.server.job import Job
from dflash_tui.server.request_error import RequestError, invalid
from dflash_tui.server.updates import Ended, Failed, Reading, Recorded, Step, Update
from dflash_tui.server.worker import Worker
from dflash_tui.server.writer import Writer, event

ALIVE_S = 5.0
"""How often a client that waits hears something."""
STEP_S, GATHER_S = 0.002, 0.032
"""After a write the next one waits so long for each step that was in it, and so long at most: writing every step of a
fast engine would slow it down, and an engine whose steps take longer has each written as it comes."""
PATIENCE_S = 60.0
"""How long a client may read nothing."""
SSE = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


async def exchange(job: Job, worker: Worker, writer: Writer, scope: Scope, receive: Receive, send: Send) -> None:
    """Queue the job and answer with what comes of it. Raises RequestError before the response has begun."""
    scope["before"] = worker.submit(job)
    client = _Client(job, worker, writer, send)
    gone = asyncio.create_task(left(receive))
    work = asyncio.create_task(client.stream() if job.streamed else client.whole())
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


async def left(receive: Receive) -> None:
    """Returns when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


class _Client:
    def __init__(self, job: Job, worker: Worker, writer: Writer, send: Send) -> None:
        self._job, self._worker, self._writer, self._send = job, worker, writer, send
        self._open = self._begun = False
        self.line: dict[str, Any] = {}
        """For the log."""

    async def whole(self) -> None:
        last = (await self._job.updates.take())[0]
        if isinstance(last, Failed):
            raise as_refusal(last.error)
        assert isinstance(last, Ended)
        self.line = logged(last)
        body = msgspec.json.encode(self._writer.whole(self._job.updates.parts, last))
        fields = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await self._send({"type": "http.response.start", "status": 200, "headers": fields})
        await self._send({"type": "http.response.body", "body": body})

    async def stream(self) -> None:
        """What comes while an event is written, and shortly after it, is written with the next one."""
        read: Reading | None = None
        while True:
            updates = await self._next()
            data = b"" if updates else self._writer.waits(*self._worker.place(self._job), read)
            for update in updates:
                if isinstance(update, Failed):
                    refusal = as_refusal(update.error)
                    if not (self._open or data):
                        raise refusal
                    return await self._write(data + self._writer.failed(refusal), more=False)
                if isinstance(update, Reading):
                    read = update
                data += self._event(update)
                if isinstance(update, Ended):
                    self.line = logged(update)
                    return await self._write(data, more=False)
            if data or any(not isinstance(update, Reading) for update in updates):
                await self._write(data)
                steps = sum(update.count for update in updates if isinstance(update, Step))
                await self._job.updates.gather(min(steps * STEP_S, GATHER_S))

    def _event(self, update: Recorded | Reading | Step | Ended) -> bytes:
        if isinstance(update, Recorded):
            return event(encode(update.line), "dflash")
        if isinstance(update, Reading):
            return self._writer.progress(update)
        first = b""
        if not self._begun:
            self._begun = True
            first = self._writer.begin(update.read if isinstance(update, Step) else None)
        return first + (self._writer.step(update) if isinstance(update, Step) else self._writer.end(update))

    async def _next(self) -> list[Update]:
        """The next updates; none where nothing came for a while."""
        if found := self._job.updates.now():
            return found
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ALIVE_S):
                return await self._job.updates.take()
        return []

    async def _write(self, data: bytes, *, more: bool = True) -> None:
        if not self._open:
            self._open = True
            await self._send({"type": "http.response.start", "status": 200, "headers": list(SSE)})
        if data or not more:
            message = {"type": "http.response.body", "body": data, "more_body": more}
            async with asyncio.timeout(PATIENCE_S):
                await self._send(message)


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
    """What the log says of an answer: figures, and none of its text."""
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
