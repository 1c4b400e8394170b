"""A loaded pair as a service: the queue, the threads, its figures; endpoints use it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.requests import Request as HTTPRequest
from starlette.types import Receive, Scope, Send

from dflash_core.clean import encodable
from dflash_core.engine import Engine
from dflash_core.text.prompt import Prompt
from dflash_tui.application.background import DecoderUse
from dflash_tui.application.requests import Requests, client_name
from dflash_tui.application.session import LoadRequest
from dflash_tui.server.asked import Asked, Request
from dflash_tui.server.body import Decoded, decode, read_body
from dflash_tui.server.exchange import exchange
from dflash_tui.server.job import Job
from dflash_tui.server.metrics import Metrics
from dflash_tui.server.prepare import Preparer
from dflash_tui.server.request_error import RequestError
from dflash_tui.server.sampling import Defaults
from dflash_tui.server.settings import ServerSettings
from dflash_tui.server.updates import text_thinking_calls
from dflash_tui.server.worker import Worker
from dflash_tui.server.writer import Writer
from dflash_tui.server.written import Thoughts

JOIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Served:
    """What is served: the names of target and drafter, and the defaults of requests. `clients`: those of programs by
    their names, or by key-1, key-2 and so on, which goes first."""

    target: str
    draft: str
    defaults: Defaults
    clients: Mapping[str, Defaults] = field(default_factory=dict)


def served(request: LoadRequest, defaults: Defaults, clients: Mapping[str, Defaults]) -> Served:
    """The names of a pair that was loaded."""
    target = encodable(request.target.stem) if request.target else "demo"
    draft = encodable(request.draft.name) if request.draft else "" if request.target else "demo drafter"
    return Served(target, draft, defaults, clients)


class Service:
    """Uses the engine from its creation to `close`. `requests`: those that were accepted, to watch. `decoder`: where
    the app uses the engine too."""

    def __init__(
        self,
        engine: Engine,
        served: Served,
        settings: ServerSettings,
        requests: Requests | None = None,
        decoder: DecoderUse | None = None,
    ) -> None:
        self.engine, self.served, self.settings = engine, served, settings
        self.requests = requests or Requests()
        self.created = int(time.time())
        drafter = engine.limits.drafter
        self.metrics = Metrics(drafter.block - 1 if drafter else 0)
        self.thoughts = Thoughts()
        self.preparer = Preparer(engine, (served.target, served.draft), self.metrics.compiled)
        self.worker = Worker(engine, settings.queue, self.metrics.ended, decoder)

    @property
    def name(self) -> str:
        """The name of the model in requests and answers."""
        return self.settings.alias or self.served.target

    @property
    def names(self) -> tuple[str, ...]:
        """All names that requests may use, the first is shown."""
        return tuple(dict.fromkeys((self.name, self.served.target)))

    async def read(self, http: HTTPRequest, kind: type[Decoded]) -> Decoded:
        """The body of a request. Raises RequestError and ClientGoneError."""
        return decode(await read_body(http.scope, http.receive, self.settings.max_body), kind)

    def retune(self, defaults: Defaults, clients: Mapping[str, Defaults]) -> None:
        """Other defaults for the requests that follow."""
        self.served = replace(self.served, defaults=defaults, clients=clients)

    def defaults_of(self, scope: Scope) -> Defaults:
        """Those of the client that sends a request; without a preset the common ones."""
        served = self.served
        for name in (f"key-{scope.get('key', 0)}", client_name(scope["log"]["client"])):
            if name in served.clients:
                return served.clients[name]
        return served.defaults

    async def prompt(self, ask: Callable[[], Asked], http: HTTPRequest) -> Prompt:
        """The prompt of a request. Raises RequestError."""
        defaults = self.defaults_of(http.scope)
        return await self.preparer.on_thread(lambda: self.preparer.prompt(ask(), defaults))

    async def answer(
        self, request: Request, ask: Callable[[], Asked], writer: Writer, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Answer a request, which `ask` translates. Raises RequestError before the response has begun."""
        own = self.defaults_of(scope)
        prepared = await self.preparer.on_thread(lambda: self.preparer.prepare(ask(), own))
        client, path = scope["log"]["client"], scope["path"]
        served = self.requests.add(client, path, request.model or self.name, own.preset, prepared.prompt)
        scope["answer"], scope["log"]["model"] = served.number, served.model[:80]
        job = Job(prepared, served, self.requests, streamed=bool(request.stream), key=scope.get("key", 0))
        try:
            await exchange(job, self.worker, writer, scope, receive, send)
        except RequestError as error:
            if served.state == "waiting":
                self.requests.over(served, f"refused: {error}")
            raise
        finally:
            if self.settings.log is not None and self.settings.log.prompts:
                scope["texts"] = self._texts(job)
            if served.state == "waiting":
                self.requests.over(served, "client left")

    def _texts(self, job: Job) -> dict[str, Any]:
        """What a request and its answer say."""
        text, thinking, calls = text_thinking_calls(job.updates.parts)
        prompt = self.preparer.tokenizer.decode(job.prepared.prompt.ids)
        return {"prompt": prompt, "thinking": thinking, "answer": text, "calls": calls}

    def close(self) -> None:
        """End all threads and save the states of conversations. Blocks until the running step is over."""
        if self.end(JOIN_S):
            self.engine.leave()

    def end(self, seconds: float) -> bool:
        """End all threads; False if the running step takes longer than `seconds`. The engine stays usable."""
        self.worker.end()
        self.preparer.close()
        return self.worker.join(seconds)
