"""Runs the server in this process: until a signal ends it, or beside the app.

Connections are limited: how many there are, and how long a client may take for the headers of a request. uvicorn has
neither limit. Its own answers 503, which agents send again at once, and counts requests that only wait.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from types import FrameType

import msgspec
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import HANDLED_SIGNALS

from dflash_core.engine import Engine
from dflash_core.errors import DFlashError
from dflash_tui.application.background import DecoderUse
from dflash_tui.application.requests import Requests
from dflash_tui.server.endpoints import application
from dflash_tui.server.request_error import busy
from dflash_tui.server.sampling import Defaults
from dflash_tui.server.service import Served, Service
from dflash_tui.server.settings import ServerSettings

MAX_CONNECTIONS = 256
HEADER_S = 10.0
KEEP_ALIVE_S = 75
"""For a connection between two requests. Longer than clients keep theirs: one that is closed while its client sends
the next request is an error there."""


class Connection(H11Protocol):
    """One beyond the limit takes the place of that which has been idle longest; if none is idle, it is refused."""

    _late: asyncio.TimerHandle | None = None
    _since = 0.0  # when it became idle

    @property
    def idle(self) -> bool:
        """No request of it is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_headers()
        if len(self.connections) <= MAX_CONNECTIONS:
            return
        idle = [one for one in self.connections if isinstance(one, Connection) and one is not self and one.idle]
        if idle:
            oldest = min(idle, key=lambda one: one._since)
            self.connections.discard(oldest)
            oldest.transport.close()
        else:
            transport.write(_refusal())
            transport.close()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if not self.idle:
            self._forget_headers()
        elif self._late is None:
            self._wait_for_headers()

    def on_response_complete(self) -> None:
        self._since = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_headers()
        super().connection_lost(exc)

    def _wait_for_headers(self) -> None:
        self._since = self.loop.time()
        self._late = self.loop.call_later(HEADER_S, self.transport.close)

    def _forget_headers(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def _refusal() -> bytes:
    refusal = busy(f"{MAX_CONNECTIONS} connections are open, the limit of this server", "too_many_connections")
    body = msgspec.json.encode(refusal.body("openai", ""))
    fields = {"content-type": "application/json", "content-length": len(body), "connection": "close", **refusal.headers}
    lines = ["HTTP/1.1 429 Too Many Requests", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return "\r\n".join(lines).encode() + body


GRACE_S = 5
"""How long connections may take to end."""


class Server(uvicorn.Server):
    """At the first signal the running answer is cancelled, its stream gets an error and the server ends. A second one
    does not wait."""

    def __init__(self, service: Service, listening: Callable[[str], None]) -> None:
        """`listening` is called with the address once connections are accepted."""
        settings = service.settings
        super().__init__(
            uvicorn.Config(
                application(service), host=settings.host, port=settings.port, log_config=None, access_log=False,
                http=Connection, lifespan="off", ws="none", server_header=False, timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=GRACE_S,
            )
        )  # fmt: skip
        self._service, self._listening = service, listening
        self.signal = 0
        """The signal that ended it."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if sockets:
            host, port = sockets[0].getsockname()[:2]
            self._listening(f"http://{f'[{host}]' if ':' in host else host}:{port}")

    async def main_loop(self) -> None:
        await super().main_loop()
        self._service.worker.end()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Without raising the signals again afterwards: the process saves states of conversations then."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in HANDLED_SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.force_exit or self.should_exit
        self.should_exit = True
        self.signal = self.signal or sig


def bound(settings: ServerSettings) -> socket.socket:
    """A socket at the address of the settings, on which nobody listens yet. Raises DFlashError."""
    try:
        family, *_, address = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DFlashError(
            f"{settings.host}:{settings.port} cannot be listened on: {reason}; name another --host or --port (0: any)"
        ) from None
    return found


class ServerBeside:
    """Over the pair that the app has loaded, on threads of its own. Listens at `address` from its creation to
    `close`."""

    def __init__(
        self, engine: Engine, served: Served, settings: ServerSettings, requests: Requests, decoder: DecoderUse
    ) -> None:
        """Blocks until connections are accepted. Raises DFlashError where the address cannot be listened on."""
        socket = bound(settings)
        self._service = Service(engine, served, settings, requests, decoder)
        listening = Future[str]()
        self._server = Server(self._service, listening.set_result)

        def run() -> None:
            try:
                self._server.run(sockets=[socket])
            finally:
                if not listening.done():
                    listening.set_result("")

        self._thread = threading.Thread(target=run, name="dflash-server", daemon=True)
        self._thread.start()
        self.address = listening.result()

    def retune(self, defaults: Defaults, clients: Mapping[str, Defaults]) -> None:
        """Other defaults for the requests that follow."""
        self._service.retune(defaults, clients)

    def close(self, seconds: float) -> bool:
        """End the running answer and all connections. False if that takes longer than `seconds`."""
        self._server.should_exit = True
        self._thread.join(seconds)
        return self._service.end(seconds) and not self._thread.is_alive()
