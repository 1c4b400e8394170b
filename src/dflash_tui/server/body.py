"""Reads and decodes the body of a request."""

from __future__ import annotations

import asyncio
import re
from typing import TypeVar

import msgspec
from starlette.datastructures import Headers
from starlette.types import Receive, Scope

from dflash_core.damaged import DAMAGED, in_words, misread
from dflash_core.errors import KnobError
from dflash_tui.server.request_error import RequestError, invalid, too_deep

PATIENCE_S = 60.0
"""How long the next part of a body may take."""
Decoded = TypeVar("Decoded")
_STEPS = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class ClientGoneError(Exception):
    """The client closed the connection."""


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The whole body. Raises RequestError for one that is too large, compressed, or not JSON, ClientGoneError."""
    headers = Headers(scope=scope)
    if headers.get("content-encoding", "identity").lower() not in ("", "identity"):
        raise RequestError(415, "a compressed body; send it without content-encoding", code="unsupported_encoding")
    # A page of another origin could send text without asking the browser for leave first.
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if "origin" in headers and kind != "application/json":
        raise RequestError(415, "expected the content type application/json", code="unsupported_media_type")
    declared = headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    parts, size = list[bytes](), 0
    while True:
        try:
            message = await asyncio.wait_for(receive(), PATIENCE_S)
        except TimeoutError:
            raise RequestError(408, "the body did not arrive", headers={"connection": "close"}) from None
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise _too_large(limit)
        if not message.get("more_body", False):
            return b"".join(parts)


def _too_large(limit: int) -> RequestError:
    return RequestError(
        413, f"the body has more than {limit:,} bytes, the limit of this server (--max-body)",
        code="request_too_large", headers={"connection": "close"},
    )  # fmt: skip


def decode(body: bytes, kind: type[Decoded]) -> Decoded:
    """The body as `kind`. Raises RequestError with the path of the first field that is wrong."""
    try:
        found = msgspec.json.decode(body, type=kind)
        if _SURROGATE.search(body):
            msgspec.json.encode(found)  # half a surrogate pair has no UTF-8 form
    except msgspec.ValidationError as error:
        path = misread(error)[1]
        raise invalid(in_words(error, found=_number_at(body, path)), path or None) from None
    except KnobError as error:  # of a whole set of knobs, which checks itself
        raise invalid(str(error), "knobs") from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise invalid(f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise too_deep() from None
    return found


def _number_at(body: bytes, path: str) -> str:
    """The number at the path of a field; "" where there is something else, as texts are not repeated."""
    try:
        found = msgspec.json.decode(body)
        for name, at in _STEPS.findall(path):
            found = found[int(at)] if at else found[name]
    except (LookupError, TypeError, *DAMAGED):  # what follows a wrong field was not read before
        return ""
    return str(found) if isinstance(found, int | float) and not isinstance(found, bool) else ""
