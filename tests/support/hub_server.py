"""A local hub server: the part of the protocol that downloads need, and one kind of failure per repository."""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

BODY = bytes(range(256)) * 4096 * 3  # 3 MiB, some chunks
COMMIT = "0" * 40
PAGE = b"<html>Sign in to the hotel's network</html>"


@dataclass
class Hub:
    """`_Answer` decides by a repository's name how it behaves. `asked`: method, range and token of each request."""

    endpoint: str = ""
    body: bytes = BODY
    cut_at: float = 0.4  # share of the requested bytes after which a connection is cut
    times: int = 1  # how often that happens
    status: int = 200
    retry_after: str = ""
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    stalled: threading.Event = field(default_factory=threading.Event)
    api: bytes = b""  # what the library's own requests are answered with
    silent: str = ""  # until `stalled` is set, it does not reply to a "HEAD" or "GET", or stops amid the "bytes"
    fell_silent: threading.Event = field(default_factory=threading.Event)

    @property
    def gets(self) -> list[str]:
        """The requested byte ranges."""
        return [asked for method, asked, _ in self.asked if method == "GET"]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    hub: Hub

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client that is stopped closes its connections, which is no news for the tests' output.
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""

    def _answer(self, *, body: bool) -> None:
        hub, repo = cast(_Server, self.server).hub, self.path.split("/")[2]
        if self.path.startswith("/api/"):  # requested by the library itself
            self._head(200 if hub.api else 404, {"Content-Type": "application/json"}, len(hub.api))
            self.wfile.write(hub.api)
            return
        asked = self.headers.get("Range", "")
        hub.asked.append((self.command, asked, self.headers.get("Authorization", "")))
        if hub.silent == self.command:
            self._say_nothing()
        if repo in ("secret", "gone", "busy", "broken"):
            headers = {"gone": {"X-Error-Code": "RepoNotFound"}, "busy": {"Retry-After": "7"}}.get(repo, {})
            self._head({"secret": 401, "gone": 404, "busy": 429, "broken": 500}[repo], headers)
            return
        if repo == "page" or (repo == "portal" and body):
            self._head(200, {"Content-Type": "text/html"}, len(PAGE))
            if body:
                self.wfile.write(PAGE)
            return
        if repo == "moody" and body and hub.times:
            hub.times -= 1
            self._head(hub.status, {"Retry-After": hub.retry_after} if hub.retry_after else {})
            return
        start = int(asked.removeprefix("bytes=").split("-")[0]) if asked and repo != "deaf" else 0
        if start and repo == "restless":
            self._head(416, {"Content-Range": f"bytes */{len(hub.body)}"})
            return
        if start and repo == "elsewhere":
            start += 1000
        whole, sum = hub.body, hashlib.sha256(hub.body).hexdigest()
        if repo == "small":
            sum = hashlib.sha1(f"blob {len(whole)}\0".encode() + whole).hexdigest()
        if repo == "liar":
            sum = "f" * 64
        about = {"ETag": f'"{sum}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if start:
            about["Content-Range"] = f"bytes {start}-{len(whole) - 1}/{len(whole)}"
        self._head(206 if start else 200, about, len(whole) - start)
        if not body:
            return
        rest = whole[start:]
        if hub.silent == "bytes":
            self.wfile.write(rest[: len(rest) // 2])
            self.wfile.flush()
            self._say_nothing()
            return
        if repo == "slow":
            middle = int(len(whole) * hub.cut_at) - start
            self.wfile.write(rest[: max(middle, 0)])
            self.wfile.flush()
            hub.stalled.wait(600)
            rest = rest[max(middle, 0) :]
        if repo in ("cut", "stall") and hub.times:
            hub.times -= 1
            self.wfile.write(rest[: int(len(rest) * hub.cut_at)])
            self.wfile.flush()
            if repo == "stall":
                hub.stalled.wait(30)
            self.close_connection = True
            self.connection.close()
            return
        self.wfile.write(rest)

    def _say_nothing(self) -> None:
        hub = cast(_Server, self.server).hub
        hub.fell_silent.set()
        hub.stalled.wait(600)
        self.close_connection = True

    def _head(self, status: int, headers: dict[str, str], length: int = 0) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()


@contextmanager
def serving() -> Iterator[Hub]:
    """A hub on a port of this machine."""
    server = _Server(("127.0.0.1", 0), _Answer)
    hub = server.hub = Hub(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.stalled.set()
        server.shutdown()
        server.server_close()
        thread.join(5)
