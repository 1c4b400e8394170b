"""The server's requests as an OpenAPI description, from the structs that read them: for fuzzers.

python -m support.description > openapi.json, in tests/; then
schemathesis run openapi.json --url ADDRESS --checks not_a_server_error
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from dflash_tui.server.anthropic import CountRequest, MessagesRequest
from dflash_tui.server.chat import ChatRequest
from dflash_tui.server.completions import CompletionRequest
from dflash_tui.server.endpoints import AnswerChange, DetokenizeRequest, TokenizeRequest
from dflash_tui.server.responses import ResponseRequest

POSTED: Mapping[str, type] = {
    "/v1/chat/completions": ChatRequest, "/v1/completions": CompletionRequest, "/v1/responses": ResponseRequest,
    "/v1/responses/input_tokens": ResponseRequest, "/v1/messages": MessagesRequest,
    "/v1/messages/count_tokens": CountRequest, "/tokenize": TokenizeRequest, "/detokenize": DetokenizeRequest,
    "/apply-template": ChatRequest, "/dflash/answers/{number}": AnswerChange,
}  # fmt: skip
GOT = (
    "/", "/health", "/v1/models", "/v1/models/{name}", "/v1/responses/{name}", "/metrics", "/props", "/slots",
    "/dflash/session",
)  # fmt: skip


def description() -> dict[str, Any]:
    """An object of OpenAPI 3.1. Which fields go together is not in it: many of these requests are refused."""
    schemas, components = msgspec.json.schema_components(POSTED.values(), ref_template="#/components/schemas/{name}")
    paths: dict[str, Any] = {}
    for path, schema in zip(POSTED, schemas):
        body = {"required": True, "content": {"application/json": {"schema": schema}}}
        paths[path] = {"post": _operation(path) | {"requestBody": body}}
    for path in GOT:
        paths[path] = {"get": _operation(path)}
    return {
        "openapi": "3.1.0", "info": {"title": "dflash-tui serve", "version": "1"}, "paths": paths,
        "components": {"schemas": components},
    }  # fmt: skip


def _operation(path: str) -> dict[str, Any]:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    kinds = {"number": {"type": "integer"}, "name": {"type": "string"}}
    given = [{"name": name, "in": "path", "required": True, "schema": kinds[name]} for name in names]
    return {"parameters": given, "responses": {"default": {"description": "an answer, or an error object"}}}


if __name__ == "__main__":
    sys.stdout.write(msgspec.json.encode(description()).decode() + "\n")
