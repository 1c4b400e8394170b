"""The paths of the server, and what answers each. Those beside the queue answer while the engine is busy."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from dflash_core.knobs import Knobs
from dflash_core.record import VERSION, Start, encode
from dflash_core.text.tokenizer import Tokenizer
from dflash_tui import __version__
from dflash_tui.application.session_state import SessionState
from dflash_tui.server import anthropic, chat, completions, responses
from dflash_tui.server.asked import Asked, Request
from dflash_tui.server.exchange import ALIVE_S, PATIENCE_S, SSE, left
from dflash_tui.server.gate import Gate, json_response
from dflash_tui.server.metrics import TYPE
from dflash_tui.server.request_error import RequestError, invalid
from dflash_tui.server.service import Service
from dflash_tui.server.writer import Writer, event

NOT_BUILT = ("/embeddings", "/rerank", "/moderations", "/images/{name:path}", "/audio/{name:path}")
LOOK_S = 0.05
AnyRequest = TypeVar("AnyRequest", bound=Request)
Handler = Callable[[HTTPRequest], Awaitable[ASGIApp]]


class TokenizeRequest(msgspec.Struct):
    content: str | None = None
    parse_special: bool | None = None


class DetokenizeRequest(msgspec.Struct):
    tokens: list[int] | None = None


class AnswerChange(msgspec.Struct):
    """`knobs`: all of them; the answer takes those that can change while it is written."""

    stop: bool | None = None
    answer_now: bool | None = None
    knobs: Knobs | None = None


class Endpoints:
    """Each public method answers one path."""

    def __init__(self, service: Service) -> None:
        self._service = service

    # Answers of the engine

    async def chat(self, http: HTTPRequest) -> ASGIApp:
        return await self._answer(http, chat.ChatRequest, chat.asked_of, chat.ChatWriter)

    async def messages(self, http: HTTPRequest) -> ASGIApp:
        kind, writer = anthropic.MessagesRequest, anthropic.AnthropicWriter
        return await self._answer(http, kind, anthropic.asked_of, writer, any_model=True)

    async def completions(self, http: HTTPRequest) -> ASGIApp:
        tokenizer, size = self._service.preparer.tokenizer, self._service.engine.vocab_size
        asked_of = partial(completions.asked_of, tokenizer=tokenizer, vocabulary=size)
        return await self._answer(http, completions.CompletionRequest, asked_of, completions.CompletionWriter)

    async def responses(self, http: HTTPRequest) -> ASGIApp:
        thoughts = self._service.thoughts
        writer = partial(responses.ResponseWriter, thoughts=thoughts)
        asked_of = partial(responses.asked_of, thoughts=thoughts)
        return await self._answer(http, responses.ResponseRequest, asked_of, writer)

    async def _answer(
        self,
        http: HTTPRequest,
        kind: type[AnyRequest],
        asked_of: Callable[[AnyRequest], Asked],
        writer: Callable[[AnyRequest, str], Writer],
        *,
        any_model: bool = False,
    ) -> ASGIApp:
        """`any_model`: an API in which the model's name does not count. Raises RequestError."""
        request = await self._service.read(http, kind)
        if not any_model:
            self._check_model(request.model)
        written = writer(request, request.model or self._service.name)
        return partial(self._service.answer, request, partial(asked_of, request), written)

    def _check_model(self, given: str | None) -> None:
        if given and given not in self._service.names:
            there = f"this server has {self._service.name!r}"
            raise RequestError(404, f"the model {given[:80]!r} is not loaded; {there}", "model", "model_not_found")

    async def input_tokens(self, http: HTTPRequest) -> Response:
        request = await self._service.read(http, responses.ResponseRequest)
        ask = partial(responses.asked_of, request, self._service.thoughts)
        prompt = await self._service.prompt(ask, http)
        return json_response({"object": "response.input_tokens", "input_tokens": len(prompt.ids)})

    async def count_tokens(self, http: HTTPRequest) -> Response:
        request = await self._service.read(http, anthropic.CountRequest)
        prompt = await self._service.prompt(partial(anthropic.asked_of, request), http)
        return json_response({"input_tokens": len(prompt.ids)})

    async def not_built(self, http: HTTPRequest) -> Response:
        what = "this server generates text; embeddings, rankings, moderation, images and sound are not supported"
        raise RequestError(501, f"{http.url.path[:80]}: {what}", code="not_supported")

    async def stored(self, http: HTTPRequest) -> Response:
        raise RequestError(404, "no response is stored here", code="not_found")

    # Health, models, properties, figures

    async def root(self, http: HTTPRequest) -> Response:
        text = b"" if http.method == "HEAD" else f"dflash-tui {__version__}: {self._service.name}\n".encode()
        return Response(text, media_type="text/plain")

    async def health(self, http: HTTPRequest) -> Response:
        if self._service.worker.broken:
            raise RequestError(503, self._service.worker.broken, code="engine_failed")
        return json_response({"status": "ok"})

    async def models(self, http: HTTPRequest) -> Response:
        found = [self._model(name, http) for name in self._service.names]
        listed: dict[str, Any] = {"object": "list", "data": found}
        if "anthropic-version" in http.headers:
            listed |= {"has_more": False, "first_id": found[0]["id"], "last_id": found[-1]["id"]}
        return json_response(listed)

    async def model(self, http: HTTPRequest) -> Response:
        name = http.path_params["name"]
        self._check_model(name)
        return json_response(self._model(name, http))

    def _model(self, name: str, http: HTTPRequest) -> dict[str, Any]:
        service, target = self._service, self._service.engine.target
        meta = {
            "n_ctx": service.engine.context_length, "n_ctx_train": target.config.context_length,
            "n_vocab": target.config.vocab_size, "size": target.weight_bytes,
        }  # fmt: skip
        found: dict[str, Any] = {
            "id": name, "object": "model", "created": service.created, "owned_by": "dflash-tui",
            "max_model_len": service.engine.context_length, "context_length": service.engine.context_length,
            "meta": meta,
        }  # fmt: skip
        if "anthropic-version" in http.headers:
            created = datetime.fromtimestamp(service.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            found |= {"type": "model", "display_name": name, "created_at": created, "lifecycle": "active"}
        return found

    async def metrics(self, http: HTTPRequest) -> Response:
        service, engine = self._service, self._service.engine
        gauges: dict[str, tuple[str, dict[str, float]]] = {
            name: (help, {"": float(value)})
            for name, help, value in (
                ("num_requests_running", "Answers being written.", service.worker.running is not None),
                ("num_requests_waiting", "Requests in the queue.", service.worker.waiting),
                ("context_tokens_used", "Positions that the newest sequence takes.", engine.session.length),
                ("context_tokens_max", "Positions of the context.", engine.context_length),
                ("acceptance_length", "Tokens per step of the last answer.", service.metrics.acceptance_length),
            )
        }
        parts = {f'{{part="{one.name}"}}': float(one.bytes) for one in engine.memory().components}
        return Response(service.metrics.text(gauges | {"memory_bytes": ("Memory by part.", parts)}), media_type=TYPE)

    async def props(self, http: HTTPRequest) -> Response:
        service, engine = self._service, self._service.engine
        support, template, tokenizer = service.preparer.support, engine.target.template, engine.target.tokenizer
        drafter, defaults = engine.limits.drafter, service.served.defaults
        found = {
            "default_generation_settings": {
                "n_ctx": engine.context_length, "params": defaults.knobs_for(defaults.knobs.thinking).to_dict(),
            },
            "total_slots": 1, "model_alias": service.name, "model_path": engine.target.file.path.name,
            "chat_template": template.source,
            "chat_template_caps": {
                "supports_tools": support.renders, "supports_tool_calls": support.form is not None,
                "supports_parallel_tool_calls": support.several,
            },
            "build_info": f"dflash-tui {__version__}",
            "bos_token": _name(tokenizer, tokenizer.bos_token_id),
            "eos_token": _name(tokenizer, tokenizer.eos_token_id),
            "modalities": {"vision": False, "audio": False},
            "dflash": {
                "version": __version__, "drafter": drafter.kind if drafter else None, "kv": str(engine.kv.pair),
                "notes": list(engine.notes),
            },
        }  # fmt: skip
        return json_response(found)

    async def slots(self, http: HTTPRequest) -> Response:
        service, running = self._service, self._service.worker.running
        done = running.written if running is not None else 0
        left = running.prepared.knobs.max_tokens - done if running is not None else -1
        slot = {
            "id": 0, "n_ctx": service.engine.context_length,
            "speculative": service.engine.limits.drafter is not None, "is_processing": running is not None,
            "next_token": [{"n_decoded": done, "n_remain": left}],
        }  # fmt: skip
        return json_response([slot])

    # Tokens and prompts

    async def tokenize(self, http: HTTPRequest) -> Response:
        request = await self._service.read(http, TokenizeRequest)
        special, tokenizer = bool(request.parse_special), self._service.preparer.tokenizer
        ids = await self._service.preparer.on_thread(lambda: tokenizer.encode(request.content or "", special=special))
        return json_response({"tokens": ids})

    async def detokenize(self, http: HTTPRequest) -> Response:
        request = await self._service.read(http, DetokenizeRequest)
        size = self._service.engine.vocab_size
        tokens = request.tokens or []
        wrong = next((at for at, one in enumerate(tokens) if not 0 <= one < size), None)
        if wrong is not None:
            place = f"tokens[{wrong}]"
            raise invalid(f"{place} is {tokens[wrong]}, expected an id below {size}", place)
        found = b"".join(map(self._service.preparer.tokenizer.token_bytes, tokens))
        return json_response({"content": found.decode("utf-8", "replace")})

    async def apply_template(self, http: HTTPRequest) -> Response:
        request = await self._service.read(http, chat.ChatRequest)
        prompt = await self._service.prompt(partial(chat.asked_of, request), http)
        return json_response({"prompt": prompt.text})

    # For an attached app: the pair, the lines of all requests, and what changes a running answer

    async def session(self, http: HTTPRequest) -> Response:
        service, engine = self._service, self._service.engine
        defaults = service.served.defaults
        state = SessionState(
            VERSION, __version__, service.name, " + ".join(filter(None, (service.served.target, service.served.draft))),
            engine.context_length, engine.memory(), engine.limits, defaults.knobs_for(defaults.knobs.thinking),
            tuple(engine.notes),
        )  # fmt: skip
        return json_response(state)

    async def events(self, http: HTTPRequest) -> ASGIApp:
        """All lines from now on, as events named `dflash`, after one named `lines` that says which numbers theirs are;
        `last-event-id` goes on after one. Before the first line of a request, an event named `request` says whose it
        is. A comment says how many are lost where a reader is late."""
        if not self._service.settings.watched:
            raise RequestError(
                403, "this server has several keys, so requests are not shown to each other; --share-events shows them",
                code="events_not_shared",
            )  # fmt: skip
        return self._send_lines

    async def _send_lines(self, scope: Scope, receive: Receive, send: Send) -> None:
        requests = self._service.requests
        source, _, last = Headers(scope=scope).get("last-event-id", "").partition("-")
        known = source == requests.id and last.isdecimal() and len(last) < 16
        sent = min(int(last), requests.last_line) if known else requests.last_line
        await send({"type": "http.response.start", "status": 200, "headers": list(SSE)})
        gone = asyncio.ensure_future(left(receive))
        data, idle = event(msgspec.json.encode(requests.id), "lines"), 0.0
        try:
            while not gone.done() and not self._service.worker.ending:
                lines, lost = requests.after(sent)
                data += f": {lost} lines are lost\n\n".encode() if lost else b""
                for one in lines:
                    if isinstance(one.line, Start):
                        of = one.request
                        about = {"client": of.client, "path": of.path, "model": of.model}
                        data += event(msgspec.json.encode(about), "request")
                    data += f"id: {requests.id}-{one.number}\n".encode() + event(encode(one.line), "dflash")
                    sent = one.number
                idle += LOOK_S
                if data or idle >= ALIVE_S:
                    message = {"type": "http.response.body", "body": data or b": nothing\n\n", "more_body": True}
                    data, idle = b"", 0.0
                    await asyncio.wait_for(send(message), PATIENCE_S)
                await asyncio.sleep(LOOK_S)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except (OSError, TimeoutError):
            pass  # of a client that no longer reads
        finally:
            gone.cancel()

    async def change(self, http: HTTPRequest) -> Response:
        request = await self._service.read(http, AnswerChange)
        number = http.path_params["number"]
        job = self._service.worker.find(number)
        if job is None or not (self._service.settings.watched or job.key == http.scope["key"]):
            raise RequestError(404, f"no answer of the number {number} is waiting or running", code="not_found")
        if request.knobs is not None:
            job.change(request.knobs)
        if request.answer_now:
            job.answer_now()
        if request.stop:
            job.cancel()
        return json_response({"answer": number})


def _name(tokenizer: Tokenizer, id: int | None) -> str:
    return tokenizer.name(id) if id is not None else ""


def application(service: Service) -> ASGIApp:
    """The whole server as an ASGI application."""
    to = Endpoints(service)
    routes = [
        _route("/", to.root, ("GET",)),
        *_both("/health", to.health, ("GET",)),
        *_both("/models", to.models, ("GET",)),
        *_both("/models/{name:path}", to.model, ("GET",)),
        *_both("/chat/completions", to.chat),
        *_both("/completions", to.completions),
        *_both("/responses", to.responses),
        *_both("/responses/input_tokens", to.input_tokens),
        *_both("/responses/{name}", to.stored, ("GET", "DELETE")),
        *(one for path in NOT_BUILT for one in _both(path, to.not_built)),
        *_both("/messages", to.messages),
        *_both("/messages/count_tokens", to.count_tokens),
        _route("/metrics", to.metrics, ("GET",)),
        _route("/props", to.props, ("GET",)),
        _route("/slots", to.slots, ("GET",)),
        _route("/tokenize", to.tokenize),
        _route("/detokenize", to.detokenize),
        _route("/apply-template", to.apply_template),
        _route("/dflash/session", to.session, ("GET",)),
        _route("/dflash/events", to.events, ("GET",)),
        _route("/dflash/answers/{number:int}", to.change),
    ]
    return Gate(Router(routes, redirect_slashes=False), service.settings, service.metrics.request)


def _both(path: str, handler: Handler, methods: Sequence[str] = ("POST",)) -> list[Route]:
    """With and without the version before it: some clients add it to their base address, others expect it there."""
    return [_route(path, handler, methods), _route(f"/v1{path}", handler, methods)]


def _route(path: str, handler: Handler, methods: Sequence[str] = ("POST",)) -> Route:
    return Route(path, handler, methods=list(methods))
