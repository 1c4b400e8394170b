"""The paths of the server, and what answers each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from starlette.requests import Request as HTTPRequest
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from dflash_tui.server import anthropic, chat, completions, responses
from dflash_tui.server.asked import Asked, Request
from dflash_tui.server.gate import Gate, json_response
from dflash_tui.server.parts import check_model
from dflash_tui.server.plain_pages import Pages
from dflash_tui.server.request_error import RequestError
from dflash_tui.server.responses_writer import ResponseWriter
from dflash_tui.server.service import Service
from dflash_tui.server.watching import Watching
from dflash_tui.server.writer import Writer

NOT_BUILT = ("/embeddings", "/rerank", "/moderations", "/images/{name:path}", "/audio/{name:path}")


class Generation:
    """The endpoints that make the engine answer."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def chat(self, http: HTTPRequest) -> ASGIApp:
        request = await self._service.read(http, chat.ChatRequest)
        name = self._model(request)
        return self._answer(request, lambda: chat.asked_of(request), chat.ChatWriter(request, name))

    async def messages(self, http: HTTPRequest) -> ASGIApp:
        request = await self._service.read(http, anthropic.MessagesRequest)
        name = request.model or self._service.name
        return self._answer(request, lambda: anthropic.asked_of(request), anthropic.AnthropicWriter(request, name))

    async def completions(self, http: HTTPRequest) -> ASGIApp:
        request, service = await self._service.read(http, completions.CompletionRequest), self._service
        writer = completions.CompletionWriter(request, self._model(request))
        tokenizer, size = service.preparer.tokenizer, service.engine.vocab_size
        return self._answer(request, lambda: completions.asked_of(request, tokenizer, size), writer)

    async def responses(self, http: HTTPRequest) -> ASGIApp:
        request = await self._service.read(http, responses.ResponseRequest)
        thoughts = self._service.thoughts
        writer = ResponseWriter(request, self._model(request), thoughts)
        return self._answer(request, lambda: responses.asked_of(request, thoughts), writer)

    def _model(self, request: Request) -> str:
        """The name of the model in an API where it counts. Raises RequestError."""
        check_model(request.model, self._service.names)
        return request.model or self._service.name

    def _answer(self, request: Request, ask: Callable[[], Asked], writer: Writer) -> ASGIApp:
        return partial(self._service.answer, request, ask, writer)

    async def input_tokens(self, http: HTTPRequest) -> Response:
        request = await self._service.read(http, responses.ResponseRequest)
        count = await self._service.count(lambda: responses.asked_of(request, self._service.thoughts), http)
        return json_response({"object": "response.input_tokens", "input_tokens": count})

    async def not_built(self, http: HTTPRequest) -> Response:
        what = "this server generates text; embeddings, rankings, moderation, images and sound are not supported"
        raise RequestError(501, f"{http.url.path[:80]}: {what}", code="not_supported")

    async def stored(self, http: HTTPRequest) -> Response:
        raise RequestError(404, "no response is stored here", code="not_found")

    async def count_tokens(self, http: HTTPRequest) -> Response:
        request = await self._service.read(http, anthropic.CountRequest)
        return json_response({"input_tokens": await self._service.count(lambda: anthropic.asked_of(request), http)})


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
        *(one for path in NOT_BUILT for one in _both(path, generation.not_built)),
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


Handler = Callable[[HTTPRequest], Awaitable[ASGIApp]]


def _both(path: str, handler: Handler, methods: Sequence[str] = ("POST",)) -> list[Route]:
    """With and without the version before it: some clients add it to their base address, others expect it there."""
    return [_route(path, handler, methods), _route(f"/v1{path}", handler, methods)]


def _route(path: str, handler: Handler, methods: Sequence[str] = ("POST",)) -> Route:
    return Route(path, handler, methods=list(methods))
