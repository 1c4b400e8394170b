"""The server beside the app: over the pair that the app has loaded, on threads of its own."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future

from dflash_core.engine import Engine
from dflash_tui.application.background import DecoderUse
from dflash_tui.application.requests import Requests
from dflash_tui.server.sampling import ClientDefaults, Defaults
from dflash_tui.server.service import Served, Service
from dflash_tui.server.serving import Server, bound
from dflash_tui.server.settings import ServerSettings


class ServerBeside:
    """Listens at `address` from its creation to `close`."""

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

    def retune(self, defaults: Defaults, clients: Mapping[str, ClientDefaults]) -> None:
        """Other defaults for the requests that follow."""
        self._service.retune(defaults, clients)

    def close(self, seconds: float) -> bool:
        """End the running answer and all connections. False if that takes longer than `seconds`."""
        self._server.should_exit = True
        self._thread.join(seconds)
        return self._service.end(seconds) and not self._thread.is_alive()
