"""What is refused, and how each dialect writes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Dialect = Literal["openai", "anthropic"]

_TYPES: Mapping[int, tuple[str, str]] = {
    400: ("invalid_request_error", "invalid_request_error"),
    401: ("authentication_error", "authentication_error"),
    403: ("permission_error", "permission_error"),
    404: ("not_found_error", "not_found_error"),
    413: ("request_too_large", "request_too_large"),
    429: ("rate_limit_error", "rate_limit_error"),
    500: ("server_error", "api_error"),
    501: ("not_supported_error", "api_error"),
    503: ("unavailable_error", "overloaded_error"),
}
"""By status: the type of the error object for OpenAI and for Anthropic."""
RETRY_S = 2
OVERLOADED = 529
"""What Anthropic's API answers in place of 503."""


@dataclass(eq=False)
class RequestError(Exception):
    """A request that gets an error for an answer. `param`: the path of the field that is wrong. `anthropic`: the
    message in that dialect, where its clients look for certain words."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    anthropic: str = ""

    def status_in(self, dialect: Dialect) -> int:
        """The status of the response."""
        return OVERLOADED if dialect == "anthropic" and self.status == 503 else self.status

    def headers_in(self, dialect: Dialect) -> dict[str, str]:
        """Further headers of the response. Clients send most errors again unless they are asked not to."""
        again = self.status == 429 or (self.status >= 500 and self.status != 501)
        return {**self.headers, **({} if again else {"x-should-retry": "false"})}

    def body(self, dialect: Dialect, request_id: str) -> dict[str, Any]:
        """The error object."""
        types = _TYPES.get(self.status) or _TYPES[400 if self.status < 500 else 500]
        if dialect == "anthropic":
            error = {"type": types[1], "message": self.anthropic or self.message}
            return {"type": "error", "error": error, "request_id": request_id}
        return {"error": {"message": self.message, "type": types[0], "param": self.param, "code": self.code}}


def invalid(message: str, param: str | None = None, code: str | None = None) -> RequestError:
    """The refusal of a request that is wrong in itself."""
    return RequestError(400, message, param, code)


def too_long(needed: int, capacity: int, place: str) -> RequestError:
    """The refusal of a prompt of `needed` tokens, which the request has at `place`. Agents look for these words and
    then shorten their history."""
    return RequestError(
        400,
        f"This model's maximum context length is {capacity} tokens, your prompt has {needed} tokens; "
        f"shorten the {place}",
        place,
        "context_length_exceeded",
        anthropic=f"prompt is too long: {needed} tokens > {capacity} maximum",
    )


def too_deep() -> RequestError:
    """The refusal of a body whose arrays and objects are nested too deeply to be read, or to be written in a prompt."""
    return invalid("the body is nested too deeply; send flatter schemas and arguments")


def busy(message: str, code: str) -> RequestError:
    """The refusal of what may be sent again in a moment. Never 503: agents send that again at once, many times."""
    return RequestError(429, message, code=code, headers={"retry-after": str(RETRY_S)})


def ending() -> RequestError:
    """The refusal of what comes while the server shuts down."""
    return RequestError(503, "the server is shutting down", code="shutting_down", headers={"retry-after": str(RETRY_S)})
