"""The paths of the server, and what answers each."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from dflash_tui.server import anthropic, chat, completions, responses
from dflash_tui.server.asked import Asked
from dflash_tui.server.body import ClientGoneError, decode
from dflash_tui.server.exchange import Writer
from dflash_tui.server.gate import Gate, answer_json
from dflash_tui.server.parts import check_model
from dflash_tui.server.plain_pages import Pages
from dflash_tui.server.request_error import RequestError
from dflash_tui.server.responses_writer import ResponseWriter
from dflash_tui.server.service import Service
from dflash_tui.server.watching import Watching

Streamed = chat.ChatRequest | completions.CompletionRequest | responses.ResponseRequest | anthropic.MessagesRequest
OfModel = TypeVar("OfModel", chat.ChatRequest, completions.CompletionRequest, responses.ResponseRequest)
Handler = Callable[[Scope, Receive, Send], Awaitable[None]]


class Generation:
    """The endpoints that make the engine answer."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def chat(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = await self._request(scope, receive, chat.ChatRequest)
        writer = chat.ChatWriter(request, request.model or self._service.name)
        await self._answer(request, chat.asked_of(request), writer, scope, receive, send)

    async def messages(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = decode(await self._service.body(scope, receive), anthropic.MessagesRequest)
        writer = anthropic.AnthropicWriter(request)
        await self._answer(request, anthropic.asked_of(request), writer, scope, receive, send)

    async def completions(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, service = await self._request(scope, receive, completions.CompletionRequest), self._service
        writer = completions.CompletionWriter(request, request.model or service.name)
        asked = await service.preparer.on_thread(
            lambda: completions.asked_of(request, service.preparer.tokenizer, service.engine.vocab_size)
        )
        await self._answer(request, asked, writer, scope, receive, send)

    async def responses(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = await self._request(scope, receive, responses.ResponseRequest)
        writer = ResponseWriter(request, request.model or self._service.name)
        await self._answer(request, responses.asked_of(request), writer, scope, receive, send)

    async def _request(self, scope: Scope, receive: Receive, kind: type[OfModel]) -> OfModel:
        """The request of an API where a name of the model counts. Raises RequestError."""
        request = decode(await self._service.body(scope, receive), kind)
        check_model(request.model, self._service.names)
        return request

    async def _answer(
        self, request: Streamed, asked: Asked, writer: Writer, scope: Scope, receive: Receive, send: Send
    ) -> None:
        streamed = bool(request.stream)
        await self._service.answer(asked, writer, scope, receive, send, model=request.model, streamed=streamed)

    async def input_tokens(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = decode(await self._service.body(scope, receive), responses.ResponseRequest)
        count = await self._service.count(responses.asked_of(request), scope)
        await answer_json(200, {"object": "response.input_tokens", "input_tokens": count}, send)

    async def stored(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise RequestError(404, "no response is stored here", code="not_found")

    async def count_tokens(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = decode(await self._service.body(scope, receive), anthropic.CountRequest)
        await answer_json(200, {"input_tokens": await self._service.count(anthropic.counted_of(request), scope)}, send)


def application(service: Service) -> ASGIApp:
    """The whole server as an ASGI application."""
    pages, generation, watching = Pages(service), Generation(service), Watching(service)
    routes = [
        _route("/", pages.root, ("GET",)),
        *_both("/health", pages.health, ("GET",)),
        *_both("/models", pages.models, ("GET",)),
        *_both("/models/{name:path}", pages.model, ("GET",)),
        *_both("/chat/completions", generation.chat),
        *_both("/completions", generation.completions),
        *_both("/responses", generation.responses),
        *_both("/responses/input_tokens", generation.input_tokens),
        *_both("/responses/{name}", generation.stored, ("GET", "DELETE")),
        *_both("/messages", generation.messages),
        *_both("/messages/count_tokens", generation.count_tokens),
        _route("/metrics", pages.metrics, ("GET",)),
        _route("/props", pages.props, ("GET",)),
        _route("/slots", pages.slots, ("GET",)),
        _route("/tokenize", pages.tokenize),
        _route("/detokenize", pages.detokenize),
        _route("/apply-template", pages.apply_template),
        _route("/dflash/session", watching.session, ("GET",)),
        _route("/dflash/events", watching.events, ("GET",)),
        _route("/dflash/answers/{number:int}", watching.change),
    ]
    return Gate(Router(routes, redirect_slashes=False), service.settings, service.metrics.request)


def _both(path: str, handler: Handler, methods: Sequence[str] = ("POST",)) -> list[Route]:
    """With and without the version before it: some clients add it to their base address, others expect it there."""
    return [_route(path, handler, methods), _route(f"/v1{path}", handler, methods)]


def _route(path: str, handler: Handler, methods: Sequence[str] = ("POST",)) -> Route:
    return Route(path, _Endpoint(handler), methods=list(methods))


class _Endpoint:
    """starlette calls functions with a request; an object is called as the ASGI application that it is."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(ClientGoneError):
            await self._handler(scope, receive, send)
