"""HTTP to a server of dflash-tui, without any library."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from dflash_core.clean import one_line
from dflash_core.errors import DFlashError

PATIENCE_S = 10.0
"""For answers that need no decoder."""
SILENCE_S = 60.0
"""A stream tells something every few seconds."""


class AttachError(DFlashError):
    """The server cannot be reached, or refuses."""


class AttachedServer:
    """`url`: as http://127.0.0.1:8080. Usable from any thread."""

    def __init__(self, url: str, key: str = "") -> None:
        """Raises AttachError for what is no such address."""
        parts = urlsplit(url if "//" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise AttachError(f"{one_line(url, 100)}: expected an address such as http://127.0.0.1:8080")
        self.url = f"{parts.scheme}://{parts.netloc}"
        self._host, self._port, self._tls = parts.hostname, port, parts.scheme == "https"
        self._headers = {"content-type": "application/json", "user-agent": "dflash-tui"}
        if key:
            self._headers["authorization"] = f"Bearer {key}"

    def get(self, path: str) -> bytes:
        """The body of a path. Raises AttachError."""
        return self._whole("GET", path, None)

    def post(self, path: str, body: object) -> bytes:
        """The body of the answer to an object. Raises AttachError."""
        return self._whole("POST", path, body)

    def stream(self, path: str, body: object) -> Stream:
        """The events that answer an object, once they are iterated."""
        return Stream(self, path, body)

    def _whole(self, method: str, path: str, body: object) -> bytes:
        connection = self.connect(PATIENCE_S)
        try:
            return self.asked(connection, method, path, body).read()
        except (OSError, http.client.HTTPException) as error:
            raise self.lost(error) from None
        finally:
            connection.close()

    def connect(self, timeout: float) -> http.client.HTTPConnection:
        """A connection that is opened by its first request."""
        kind = http.client.HTTPSConnection if self._tls else http.client.HTTPConnection
        return kind(self._host, self._port, timeout=timeout)

    def asked(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: object
    ) -> http.client.HTTPResponse:
        """The response to a request. Raises AttachError where it is refused, OSError and HTTPException."""
        data = None if body is None else json.dumps(body).encode()
        connection.request(method, path, data, self._headers)
        response = connection.getresponse()
        if response.status != 200:
            raise AttachError(f"{self.url}: {_reason(response.status, response.read(65_536))}")
        return response

    def lost(self, error: Exception) -> AttachError:
        """Why nothing more comes."""
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return AttachError(f"{self.url} does not answer: {one_line(reason, 120)}; is dflash-tui serve running there?")


def _reason(status: int, body: bytes) -> str:
    """The server's own words."""
    with suppress(ValueError, LookupError, TypeError):
        return one_line(str(json.loads(body)["error"]["message"]))
    return f"it answers {status}, which a server of dflash-tui does not"


class Stream:
    """Server-sent events as pairs of name and data. Iterated on one thread; `cut` from any."""

    def __init__(self, server: AttachedServer, path: str, body: object) -> None:
        self._server, self._path, self._body = server, path, body
        self._connection: http.client.HTTPConnection | None = None
        self.headers: Any = {}
        self._cut = False

    def cut(self) -> None:
        """End it at once: the server then cancels the answer."""
        self._cut = True
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        self._connection = connection = self._server.connect(SILENCE_S)
        try:
            response = self._server.asked(connection, "POST", self._path, self._body)
            self.headers = response.headers
            name = ""
            while line := response.readline():
                if line.startswith(b"event: "):
                    name = line[7:].strip().decode(errors="replace")
                elif line.startswith(b"data: "):
                    yield name, line[6:].strip()
                elif not line.strip():
                    name = ""
        except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
            # A socket that another thread has shut down may fail in any of these forms.
            if not self._cut:
                raise self._server.lost(error) from None
        finally:
            connection.close()
