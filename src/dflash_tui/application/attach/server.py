"""HTTP to a server of models, without any library."""

from __future__ import annotations

import http.client
import json as json_text
import secrets
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from dflash_core.clean import one_line
from dflash_core.errors import DFlashError

PATIENCE_S = 10.0
"""For answers that need no decoder."""
SILENCE_S = 60.0
"""A stream of dflash-tui tells something every few seconds."""
MAX_BODY = 64 * 2**20
MAX_LINE = 16 * 2**20
CUT_OFF = "the server ended the connection in mid-answer; what has arrived stays"
EXPECTED = "expected an address such as http://127.0.0.1:8080"


class AttachError(DFlashError):
    """The server cannot be reached, or refuses. `status`: of the refusal, 0 without one."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class AttachedServer:
    """`url`: as http://127.0.0.1:8080; a path at its end stays, apart from `/v1`. Usable from any thread."""

    def __init__(self, url: str, key: str = "", patience_s: float = PATIENCE_S) -> None:
        """Raises AttachError for what is no such address."""
        parts = urlsplit(url if "//" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1 or parts.username is not None:
            raise AttachError(f"{one_line(url, 100)}: {EXPECTED}")
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")
        self.url = f"{parts.scheme}://{parts.netloc}{self._prefix}"
        self._host, self._port, self._tls = parts.hostname, port, parts.scheme == "https"
        self._patience_s = patience_s
        self.agent = f"dflash-tui ({secrets.token_hex(4)})"  # tells requests of one app from those of others
        self._headers = {"content-type": "application/json", "user-agent": self.agent}
        if key:
            if not (key.isascii() and key.isprintable()):  # its own error would quote the key
                raise AttachError("the key has characters that a header cannot carry; give it without line ends")
            self._headers["authorization"] = f"Bearer {key}"

    def fetch(self, path: str, body: object = None) -> bytes:
        """What is at a path, or what answers an object that is posted there. Raises AttachError."""
        connection = self.connect(self._patience_s)
        try:
            response = self.asked(connection, path, body)
            data = response.read(MAX_BODY)
        except (OSError, http.client.HTTPException) as error:
            raise self.lost(error) from None
        finally:
            connection.close()
        if response.getheader("content-type", "").startswith("text/html"):
            raise AttachError(f"{self.url}{path}: a web page, not the API of a model server; check the port")
        return data

    def json(self, path: str, body: object = None) -> Mapping[str, Any]:
        """The object of JSON at a path, or that answers another object. Raises AttachError."""
        data = self.fetch(path, body)
        with suppress(ValueError, RecursionError):
            found = json_text.loads(data)
            if isinstance(found, dict):
                return found
        raise AttachError(f"{self.url}{path}: expected an object of JSON, found {_described(data)}")

    def connect(self, timeout: float) -> http.client.HTTPConnection:
        """A connection that is opened by its first request."""
        if not self._tls:
            return http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=context)

    def asked(
        self, connection: http.client.HTTPConnection, path: str, body: object, more: Mapping[str, str] | None = None
    ) -> http.client.HTTPResponse:
        """The response to a request; `more`: headers. Raises AttachError where it is refused, OSError and
        HTTPException."""
        method, data = ("GET", None) if body is None else ("POST", json_text.dumps(body).encode())
        connection.request(method, self._prefix + path, data, self._headers | dict(more or {}))
        response = connection.getresponse()
        if response.status != 200:
            raise AttachError(f"{self.url}: {self._refusal(response, response.read(65_536))}", response.status)
        return response

    def _refusal(self, response: http.client.HTTPResponse, body: bytes) -> str:
        """Why a status is not 200, in the server's own words where it has some."""
        status, reason = response.status, ""
        with suppress(ValueError, RecursionError):
            reason = error_text(json_text.loads(body))
        if 300 <= status < 400 and (to := response.getheader("location")):
            return f"it answers from another address, {one_line(to, 120)}: attach to that"
        if status in (401, 403):
            keyed = "authorization" in self._headers
            wrong = "it does not accept the key" if keyed else "it needs a key: --key or DFLASH_TUI_API_KEY"
            return f"{wrong}{f' ({reason})' if reason else ''}"
        return reason or f"it answers {status} without a reason"

    def lost(self, error: Exception) -> AttachError:
        """Why nothing more comes."""
        if isinstance(error, ssl.SSLCertVerificationError):
            why = one_line(error.verify_message, 80)
            return AttachError(f"{self.url}: its certificate is not trusted ({why}); SSL_CERT_FILE names further ones")
        if isinstance(error, ssl.SSLError):
            return AttachError(f"{self.url}: no https there ({one_line(error.reason or '', 60)}); try http://")
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return AttachError(f"{self.url} does not answer: {one_line(reason, 120)}; check that a server runs there")


def error_text(found: object) -> str:
    """The message of an error object of OpenAI, llama.cpp, vLLM, FastAPI or Ollama; "" for anything else."""
    for name in ("error", "message", "detail"):
        if isinstance(found, dict) and (inner := found.get(name)):
            return error_text(inner) if isinstance(inner, dict) else one_line(str(inner), 200)
    return ""


def _described(data: bytes) -> str:
    return f"{one_line(data[:60].decode(errors='replace'))!r}" if data.strip() else "nothing"


class Stream:
    """What answers an object, or what a path sends, once it is iterated: server-sent events, or lines of JSON, as pairs
    of name and data. Iterated on one thread; `cut` from any. `silence_s`: how long nothing may come. `last_id`: that of
    the newest event; what is sent goes on after it."""

    def __init__(
        self, server: AttachedServer, path: str, body: object = None, silence_s: float = SILENCE_S, last_id: str = ""
    ) -> None:
        self._server, self._path, self._body, self._silence_s = server, path, body, silence_s
        self._socket: socket.socket | None = None  # the connection itself forgets it while a stream is read
        self.headers: Any = {}
        self.is_cut, self.last_id = False, last_id

    def cut(self) -> None:
        """End it at once: the server then cancels the answer."""
        self.is_cut = True
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        connection = self._server.connect(self._silence_s)
        try:
            connection.connect()
            self._socket = connection.sock
            if self.is_cut:
                return
            after = {"last-event-id": self.last_id} if self.last_id else {}
            response = self._server.asked(connection, self._path, self._body, after)
            self.headers = response.headers
            kind = response.getheader("content-type", "")
            if not kind.startswith(("application/x-ndjson", "text/event-stream")):
                found = _described(response.read(4096))
                raise AttachError(f"{self._server.url}{self._path}: expected a stream of events, found {found}")
            yield from self._events(response, lines=kind.startswith("application"))
        except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
            # A socket that another thread has shut down may fail in any of these forms.
            if not self.is_cut:
                raise self._server.lost(error) from None
        finally:
            connection.close()

    def _events(self, response: http.client.HTTPResponse, *, lines: bool) -> Iterator[tuple[str, bytes]]:
        name = ""
        while line := response.readline(MAX_LINE):
            if not lines and not line.endswith(b"\n"):
                return  # the connection broke within it
            line = line.strip()
            field, _, value = line.partition(b":")
            if lines and line:
                yield "", line
            elif field == b"event":
                name = value.strip().decode(errors="replace")
            elif field == b"id":
                self.last_id = value.strip().decode("ascii", "ignore")
            elif field == b"data":
                yield name, value.strip()
            elif not field:
                name = ""  # the end of an event; of a comment, nothing had begun
