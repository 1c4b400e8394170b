"""What a server sends, before the package `mcp` reads it: messages over HTTP, and lists of tools, which are checked.

The package reads an answer over HTTP whole, of any length, and refuses a whole list for one broken tool in it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias

import httpx2
from anyio.abc import ObjectReceiveStream
from mcp.client._transport import ReadStream, WriteStream
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCResponse

from dflash_core.errors import DFlashError

MAX_LINE = 8 * 2**20
"""Bytes of a message."""
CONNECT_S = 30.0
SILENT_S = 300.0  # of a stream of events; a call has its own limit
Streams: TypeAlias = "tuple[ReadStream[SessionMessage | Exception], WriteStream[SessionMessage]]"
Usable: TypeAlias = Callable[[list[Any]], list[Any]]


class _CheckedLists(ObjectReceiveStream["SessionMessage | Exception"]):
    def __init__(self, stream: ReadStream[SessionMessage | Exception], usable: Usable) -> None:
        self._stream, self._usable = stream, usable

    async def receive(self) -> SessionMessage | Exception:
        item = await self._stream.receive()
        if isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCResponse):
            found = item.message.result.get("tools")
            if isinstance(found, list):
                item.message.result["tools"] = self._usable(found)
        return item

    async def aclose(self) -> None:
        await self._stream.aclose()


@asynccontextmanager
async def checked(transport: AbstractAsyncContextManager[Streams], usable: Usable) -> AsyncIterator[Streams]:
    """A transport whose lists of tools have what `usable` returns of them."""
    async with transport as (read, write):
        yield _CheckedLists(read, usable), write


@asynccontextmanager
async def over_http(url: str, headers: Mapping[str, str]) -> AsyncIterator[Streams]:
    """Messages of the server at this address. Raises DFlashError."""
    limits = httpx2.Timeout(CONNECT_S, read=SILENT_S)
    try:
        client = httpx2.AsyncClient(headers=dict(headers), timeout=limits, transport=_Limited(), trust_env=False)
    except (ValueError, TypeError) as error:
        # Neither may appear: both may hold values of variables.
        raise DFlashError(f"its address or headers cannot be used ({type(error).__name__})") from None
    async with client, streamable_http_client(url, http_client=client, max_sse_event_size=MAX_LINE) as found:
        yield found


class _Limited(httpx2.AsyncHTTPTransport):
    """Ends an answer that is too long. Streams of events are limited by event, elsewhere."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _Counted(response.stream)
        return response


class _Counted(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read = 0
        async for piece in self._stream:
            read += len(piece)
            if read > MAX_LINE:
                raise httpx2.StreamError(f"the server sent more than {MAX_LINE // 2**20} MiB")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()
