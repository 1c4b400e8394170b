"""A loaded pair as a service: the queue, the threads, its figures; endpoints use it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from dflash_core.engine import Engine
from dflash_tui.server.asked import Asked
from dflash_tui.server.body import read_body
from dflash_tui.server.exchange import Writer, exchange
from dflash_tui.server.job import Job
from dflash_tui.server.metrics import Metrics
from dflash_tui.server.prepare import Preparer
from dflash_tui.server.sampling import Defaults
from dflash_tui.server.settings import ServerSettings
from dflash_tui.server.worker import Worker

JOIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Served:
    """What is served: the names of target and drafter, and the defaults of requests."""

    target: str
    draft: str
    defaults: Defaults


class Service:
    """Owns the engine from its creation to `close`."""

    def __init__(self, engine: Engine, served: Served, settings: ServerSettings) -> None:
        self.engine, self.served, self.settings = engine, served, settings
        self.created = int(time.time())
        drafter = engine.limits.drafter
        self.metrics = Metrics(drafter.block - 1 if drafter else 0)
        self.preparer = Preparer(engine, served.defaults, (served.target, served.draft))
        self.worker = Worker(engine, settings.queue, self.metrics.ended)

    @property
    def name(self) -> str:
        """The name of the model in requests and answers."""
        return self.settings.alias or self.served.target

    @property
    def names(self) -> tuple[str, ...]:
        """All names that requests may use, the first is shown."""
        return tuple(dict.fromkeys((self.name, self.served.target)))

    async def body(self, scope: Scope, receive: Receive) -> bytes:
        """The body of a request. Raises RequestError and ClientGoneError."""
        return await read_body(scope, receive, self.settings.max_body)

    async def answer(
        self, asked: Asked, writer: Writer, scope: Scope, receive: Receive, send: Send, *, streamed: bool
    ) -> None:
        """Answer a request. Raises RequestError before the response has begun."""
        prepared = await self.preparer.on_thread(lambda: self.preparer.prepare(asked))
        await exchange(Job(prepared), self.worker, writer, scope, receive, send, streamed=streamed)

    def close(self) -> None:
        """End all threads and save the states of conversations. Blocks until the running step is over."""
        self.worker.end()
        self.preparer.close()
        if self.worker.join(JOIN_S):
            self.engine.leave()
