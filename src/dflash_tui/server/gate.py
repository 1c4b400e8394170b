"""Around every request: its id, who may call, what is logged, and that each fault becomes an error object."""

from __future__ import annotations

import hmac
import time
import uuid
from collections.abc import Callable, Iterable

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dflash_tui.application.log import LOG
from dflash_tui.server.request_error import Dialect, RequestError
from dflash_tui.server.settings import ServerSettings, is_loopback

OPEN_PATHS = ("/health", "/v1/health")
GONE = 499
"""The status that is logged where the client went away before its answer began."""
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
        scope["app"] = self  # the router then raises what it would answer in a form of its own
        scope["request_id"] = request_id = f"req_{uuid.uuid4().hex}"
        scope["log"] = line = {"id": request_id, "path": scope["path"], "client": _client(scope)}
        headers, dialect = Headers(scope=scope), dialect_of(scope)
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
            try:
                self._check(scope, headers)
                if scope["method"] == "OPTIONS":
                    await self._preflight(headers, sending)
                else:
                    await self._app(scope, receive, sending)
            except (RequestError, HTTPException) as error:
                if status:
                    raise
                refusal = error if isinstance(error, RequestError) else _unrouted(scope, error)
                await answer_refusal(refusal, dialect, request_id, sending)
        except Exception:
            LOG.exception("request %s failed", request_id)
            if not status:
                fault = RequestError(500, "the server failed; its log has the reason", code="internal_error")
                await answer_refusal(fault, dialect, request_id, sending)
        finally:
            seconds = time.perf_counter() - began
            line |= {"status": status or GONE, "ms": round(seconds * 1e3, 1)}
            LOG.info("request %s", msgspec.json.encode(line).decode())
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
        if (
            scope["method"] == "OPTIONS"
            or scope["path"] in OPEN_PATHS
            or (scope["method"], scope["path"]) == ("HEAD", "/")
        ):
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

    async def _preflight(self, headers: Headers, send: Send) -> None:
        allowed = {
            "access-control-allow-methods": "GET, POST, OPTIONS",
            "access-control-allow-headers": headers.get("access-control-request-headers", "*"),
            "access-control-max-age": "600",
        }
        await answer(204, b"", allowed, send)


async def answer(status: int, body: bytes, headers: Iterable[tuple[str, str]] | dict[str, str], send: Send) -> None:
    """One whole response."""
    pairs = headers.items() if isinstance(headers, dict) else headers
    fields = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in pairs]
    if status != 204:
        fields.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})


async def answer_json(status: int, value: object, send: Send, headers: dict[str, str] | None = None) -> None:
    """One response of JSON."""
    await answer(status, msgspec.json.encode(value), {"content-type": "application/json", **(headers or {})}, send)


async def answer_refusal(refusal: RequestError, dialect: Dialect, request_id: str, send: Send) -> None:
    """The response of a refused request."""
    body, headers = refusal.body(dialect, request_id), refusal.headers_in(dialect)
    await answer_json(refusal.status_in(dialect), body, send, headers)


def _unrouted(scope: Scope, error: HTTPException) -> RequestError:
    what = f"{scope['method']} {scope['path']}"[:120]
    if error.status_code == 405:
        return RequestError(405, f"{what}: this path takes another method", headers=dict(error.headers or {}))
    return RequestError(error.status_code, f"{what}: there is no such path", code="not_found")


def _client(scope: Scope) -> str:
    """The name that the client gives itself."""
    return Headers(scope=scope).get("user-agent", "")[:80]
