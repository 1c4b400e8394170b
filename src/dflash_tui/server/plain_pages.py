"""Endpoints beside the queue: health, models, properties, metrics, tokens. They answer while the engine is busy."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response

from dflash_core.text.tokenizer import Tokenizer
from dflash_tui import __version__
from dflash_tui.server import chat
from dflash_tui.server.gate import json_response
from dflash_tui.server.metrics import TYPE
from dflash_tui.server.parts import check_model
from dflash_tui.server.request_error import RequestError, invalid
from dflash_tui.server.service import Service


class TokenizeRequest(msgspec.Struct):
    content: str | None = None
    parse_special: bool | None = None


class DetokenizeRequest(msgspec.Struct):
    tokens: list[int] | None = None


class Pages:
    """Each method answers one path."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def root(self, http: HTTPRequest) -> Response:
        text = b"" if http.method == "HEAD" else f"dflash-tui {__version__}: {self._service.name}\n".encode()
        return Response(text, media_type="text/plain")

    async def health(self, http: HTTPRequest) -> Response:
        if self._service.worker.broken:
            raise RequestError(503, self._service.worker.broken, code="engine_failed")
        return json_response({"status": "ok"})

    async def models(self, http: HTTPRequest) -> Response:
        anthropic = "anthropic-version" in http.headers
        found = [self._model(name, anthropic=anthropic) for name in self._service.names]
        listed: dict[str, Any] = {"object": "list", "data": found}
        if anthropic:
            listed |= {"has_more": False, "first_id": found[0]["id"], "last_id": found[-1]["id"]}
        return json_response(listed)

    async def model(self, http: HTTPRequest) -> Response:
        name = http.path_params["name"]
        if not name:  # the list's path with a slash at its end
            return await self.models(http)
        check_model(name, self._service.names)
        return json_response(self._model(name, anthropic="anthropic-version" in http.headers))

    def _model(self, name: str, *, anthropic: bool) -> dict[str, Any]:
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
        if anthropic:
            created = datetime.fromtimestamp(service.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            found |= {"type": "model", "display_name": name, "created_at": created}
        return found

    async def metrics(self, http: HTTPRequest) -> Response:
        service = self._service
        memory = service.engine.memory()
        gauges: dict[str, tuple[str, dict[str, float]]] = {
            "num_requests_running": ("Answers being written.", {"": float(service.worker.running is not None)}),
            "num_requests_waiting": ("Requests in the queue.", {"": float(service.worker.waiting)}),
            "context_tokens_used": (
                "Positions that the newest sequence takes.",
                {"": float(service.engine.session.length)},
            ),
            "context_tokens_max": ("Positions of the context.", {"": float(service.engine.context_length)}),
            "acceptance_length": ("Tokens per step of the last answer.", {"": service.metrics.acceptance_length}),
            "memory_bytes": (
                "Memory by part.",
                {f'{{part="{one.name}"}}': float(one.bytes) for one in memory.components},
            ),
        }
        return Response(service.metrics.text(gauges), media_type=TYPE)

    async def props(self, http: HTTPRequest) -> Response:
        service, engine = self._service, self._service.engine
        support, template, tokenizer = service.preparer.support, engine.target.template, engine.target.tokenizer
        drafter = engine.limits.drafter
        knobs = service.served.defaults
        found = {
            "default_generation_settings": {
                "n_ctx": engine.context_length,
                "params": knobs.knobs_for(knobs.knobs.thinking).to_dict(),
            },
            "total_slots": 1,
            "model_alias": service.name,
            "model_path": engine.target.file.path.name,
            "chat_template": template.source,
            "chat_template_caps": {
                "supports_tools": support.renders,
                "supports_tool_calls": support.form is not None,
                "supports_parallel_tool_calls": support.several,
            },
            "build_info": f"dflash-tui {__version__}",
            "bos_token": _name(tokenizer, tokenizer.bos_token_id),
            "eos_token": _name(tokenizer, tokenizer.eos_token_id),
            "modalities": {"vision": False, "audio": False},
            "dflash": {
                "version": __version__,
                "drafter": drafter.kind if drafter else None,
                "kv": str(engine.kv.pair),
                "notes": list(engine.notes),
            },
        }
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
        preparer, defaults = self._service.preparer, self._service.defaults_of(http.scope).defaults
        prompt = await preparer.on_thread(lambda: preparer.prompt(chat.asked_of(request), defaults))
        return json_response({"prompt": prompt.text})


def _name(tokenizer: Tokenizer, id: int | None) -> str:
    return tokenizer.name(id) if id is not None else ""
