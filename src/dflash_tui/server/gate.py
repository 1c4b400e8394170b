"""Around every request: its id, who may call, what is logged, and that each fault becomes an error object."""

from __future__ import annotations

import hmac
import re
import time
import uuid
from collections.abc import Callable, Mapping

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dflash_tui.application.log import LOG
from dflash_tui.server.body import ClientGoneError
from dflash_tui.server.request_error import Dialect, RequestError
from dflash_tui.server.settings import ServerSettings, is_loopback

OPEN_PATHS = ("/health", "/v1/health")
_ABSOLUTE = re.compile("https?://([^/]*)", re.IGNORECASE)  # of a target that names the server
GONE = 499
"""The status that is logged where the client went away before its answer began."""
FAULT = RequestError(500, "the server failed; its log has the reason", code="internal_error")
OnRequest = Callable[[str, int, float], None]


def dialect_of(scope: Scope) -> Dialect:
    """The dialect of a request's errors."""
    path = scope["path"]
    if path.startswith(("/v1/messages", "/messages")) or "anthropic-version" in Headers(scope=scope):
        return "anthropic"
    return "openai"


class Gate:
    """Checks host, origin and key before a body is read, and answers faults of the app below in the right dialect.

    `done` is called with path, status and seconds of each request.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings, done: OnRequest) -> None:
        self._app, self._settings, self._done = app, settings, done
        self._keys = tuple(key.encode() for key in settings.keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        began = time.perf_counter()
        if absolute := _ABSOLUTE.match(scope["path"]):  # what it names counts, not the header (RFC 9112, 3.2.2)
            scope["path"] = scope["path"][absolute.end() :] or "/"
            others = [one for one in scope["headers"] if one[0] != b"host"]
            scope["headers"] = [(b"host", absolute[1].encode()), *others]
        scope["path"] = "/" + "/".join(filter(None, scope["path"].split("/")))  # clients join base and path carelessly
        scope["app"] = self  # the router then raises what it would answer in a form of its own
        scope["request_id"] = request_id = f"req_{uuid.uuid4().hex}"
        headers, dialect = Headers(scope=scope), dialect_of(scope)
        client = headers.get("user-agent", "")[:80]  # what it says of itself
        scope["log"] = line = {"id": request_id, "path": scope["path"], "client": client}
        status = 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                fields = MutableHeaders(scope=message)
                fields["x-request-id"] = fields["request-id"] = request_id
                if "before" in scope:
                    fields["x-queue-position"] = str(scope["before"])
                    fields["x-dflash-answer"] = str(scope["answer"])
                self._allow_origin(headers, fields)
            await send(message)

        try:
            self._check(scope, headers)
            app = _preflight(headers) if scope["method"] == "OPTIONS" else self._app
            await app(scope, receive, sending)
        except ClientGoneError:
            pass
        except Exception as error:
            refusal = _refusal(scope, error)
            if status or refusal is FAULT:
                LOG.error("request %s failed", request_id, exc_info=error)
            if not status:
                body, more = refusal.body(dialect, request_id), refusal.headers_in(dialect)
                await json_response(body, refusal.status_in(dialect), more)(scope, receive, sending)
        finally:
            seconds = time.perf_counter() - began
            line |= {"status": status or GONE, "ms": round(seconds * 1e3, 1)}
            LOG.info("request %s", msgspec.json.encode(line).decode())
            if self._settings.log is not None:
                self._settings.log.write(line, scope.get("texts", {}))
            self._done(scope["path"], status or GONE, seconds)

    def _check(self, scope: Scope, headers: Headers) -> None:
        if self._settings.local and not self._known_host(headers.get("host", "")):
            raise RequestError(
                403, "this server answers to the names of this machine only; --allowed-host NAME adds one",
                code="host_not_allowed",
            )  # fmt: skip
        origin = headers.get("origin")
        if origin is not None and not self._allowed(origin):
            raise RequestError(
                403, "web pages of this origin may not call this server; --cors ORIGIN allows one",
                code="origin_not_allowed",
            )  # fmt: skip
        method, path = scope["method"], scope["path"]
        if method == "OPTIONS" or path in OPEN_PATHS or (method, path) == ("HEAD", "/"):
            return
        scope["key"] = self._key(headers)
        if self._keys and not scope["key"]:
            raise RequestError(
                401, "no valid key: send it as 'authorization: Bearer KEY' or 'x-api-key: KEY'", code="invalid_api_key"
            )

    def _known_host(self, value: str) -> bool:
        name = value.partition("]")[0].lstrip("[") if value.startswith("[") else value.partition(":")[0]
        return is_loopback(name) or name.lower() in self._settings.hosts

    def _allowed(self, origin: str) -> bool:
        return "*" in self._settings.origins or origin in self._settings.origins

    def _key(self, headers: Headers) -> int:
        """Which of the server's keys was sent, from 1; 0 for none."""
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        given = [bearer.strip()] if scheme.lower() == "bearer" else []
        given += [headers[name] for name in ("x-api-key", "api-key") if name in headers]
        found = [[hmac.compare_digest(one.encode(), key) for one in given] for key in self._keys]
        return next((number for number, same in enumerate(found, 1) if any(same)), 0)

    def _allow_origin(self, headers: Headers, fields: MutableHeaders) -> None:
        origin = headers.get("origin")
        if origin is not None and self._allowed(origin):
            fields["access-control-allow-origin"] = origin
            fields["access-control-expose-headers"] = "x-request-id, request-id, retry-after"
            fields["vary"] = "origin"


def _preflight(headers: Headers) -> Response:
    allowed = {
        "access-control-allow-methods": "GET, POST, OPTIONS",
        "access-control-allow-headers": headers.get("access-control-request-headers", "*"),
        "access-control-max-age": "600",
    }
    return Response(status_code=204, headers=allowed)


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A whole response."""
    return Response(msgspec.json.encode(value), status, headers, "application/json")


def _refusal(scope: Scope, error: Exception) -> RequestError:
    if isinstance(error, RequestError):
        return error
    if not isinstance(error, HTTPException):
        return FAULT
    what = f"{scope['method']} {scope['path']}"[:120]
    if error.status_code == 405:
        headers = error.headers or {}
        return RequestError(405, f"{what}: this path takes {headers.get('Allow', 'another method')}", headers=headers)
    return RequestError(error.status_code, f"{what}: there is no such path", code="not_found")
