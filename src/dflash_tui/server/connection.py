"""Limits of connections: how many there are, and how long a client may take for a request's headers.

uvicorn has neither. Its own limit answers 503, which agents send again at once, and counts requests that only wait.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus

import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from dflash_tui.server.request_error import RequestError, busy, invalid

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
            self._refuse(
                busy(f"{MAX_CONNECTIONS} connections are open, the limit of this server", "too_many_connections")
            )

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if not self.idle:
            self._forget_headers()
        elif self._late is None:
            self._wait_for_headers()

    def send_400_response(self, msg: str) -> None:
        """uvicorn answers with a text, which clients do not read as an error."""
        self._refuse(invalid("this is no HTTP/1.1 request, or its headers are too large; use http://, not https://"))

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

    def _refuse(self, refusal: RequestError) -> None:
        """Write the refusal of what has no request yet, and close."""
        body = msgspec.json.encode(refusal.body("openai", ""))
        fields = {"content-type": "application/json", "content-length": len(body), "connection": "close"}
        lines = [f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in (fields | refusal.headers_in("openai")).items()]
        self.transport.write("\r\n".join([*lines, "", ""]).encode() + body)
        self.transport.close()
