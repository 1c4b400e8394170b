"""Runs the server in this process: until a signal ends it, or beside the app."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from types import FrameType

import uvicorn
from uvicorn.server import HANDLED_SIGNALS

from dflash_core.engine import Engine
from dflash_core.errors import DFlashError
from dflash_tui.application.background import DecoderUse
from dflash_tui.application.requests import Requests
from dflash_tui.server.connection import KEEP_ALIVE_S, Connection
from dflash_tui.server.endpoints import application
from dflash_tui.server.sampling import Defaults
from dflash_tui.server.service import Served, Service
from dflash_tui.server.settings import ServerSettings

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
