"""A server on a thread that replays a recording of another engine, or breaks in a chosen way."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from support.engine_recordings import JSON, TEXT, Recording

Answer = Callable[[BaseHTTPRequestHandler], None]


@dataclass
class Replaying:
    """The server at `url`. `asked`: the paths, keys and bodies of its requests; `answers` replace what is recorded."""

    url: str
    asked: list[tuple[str, str, Any]] = field(default_factory=list)
    answers: dict[str, Answer] = field(default_factory=dict)

    def body(self, path: str) -> Any:
        """The newest body that was sent to a path."""
        return next(body for asked, _, body in reversed(self.asked) if asked == path)


@contextmanager
def replaying(it: Recording | None = None, key: str = "", context: ssl.SSLContext | None = None) -> Iterator[Replaying]:
    """Serve a recording until the block ends. `key`: every request needs it. `context`: over TLS."""
    answered = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None: ...

        def do_GET(self) -> None:
            self._handle(None)

        def do_POST(self) -> None:
            self._handle(json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"null"))

        def _handle(self, body: Any) -> None:
            sent = self.headers.get("authorization", "")
            server.asked.append((self.path, sent, body))
            pages = {**it.pages, **(it.after if answered.is_set() else {})} if it is not None else {}
            if self.path in server.answers:
                server.answers[self.path](self)
            elif key and sent != f"Bearer {key}":
                reply(self, 401, {"error": {"message": "Invalid API Key", "type": "authentication_error", "code": 401}})
            elif it is not None and body is not None and self.path == it.path:
                stream(self, it.stream, it.kind)
                answered.set()
            elif it is not None and self.path in (it.replies if body is not None else pages):
                reply(self, 200, (it.replies if body is not None else pages)[self.path])
            else:
                reply(self, 404, {"error": {"message": "File Not Found", "type": "not_found_error", "code": 404}})

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listener.daemon_threads = True
    if context is not None:
        listener.socket = context.wrap_socket(listener.socket, server_side=True)
    scheme = "http" if context is None else "https"
    server = Replaying(f"{scheme}://127.0.0.1:{listener.server_address[1]}")
    thread = threading.Thread(target=listener.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join()


def reply(to: BaseHTTPRequestHandler, status: int, what: Any, kind: str = "") -> None:
    """A whole answer: an object as JSON, a text as metrics."""
    data = what.encode() if isinstance(what, str) else json.dumps(what).encode()
    to.send_response(status)
    to.send_header("content-type", kind or (TEXT if isinstance(what, str) else JSON))
    to.send_header("content-length", str(len(data)))
    to.end_headers()
    to.wfile.write(data)


def stream(to: BaseHTTPRequestHandler, data: bytes, kind: str, *, whole: bool = True) -> None:
    """An answer in chunks, a line each; if it is not `whole`, the connection ends in the middle of it."""
    to.send_response(200)
    to.send_header("content-type", kind)
    to.send_header("transfer-encoding", "chunked")
    to.end_headers()
    for line in data.splitlines(keepends=True):
        to.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))
        to.wfile.flush()
    if whole:
        to.wfile.write(b"0\r\n\r\n")
    else:
        to.close_connection = True
