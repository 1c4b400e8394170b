"""A server of tools over HTTP. What it sends is limited: the package `mcp` reads answers whole."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import httpx2
from mcp.client.streamable_http import streamable_http_client

from dflash_tui.application.tools.offered import ToolsError
from dflash_tui.application.tools.stdio import MAX_LINE
from dflash_tui.application.tools.streams import Streams

CONNECT_S = 30.0
SILENT_S = 300.0  # of a stream of events; a call has its own limit


@asynccontextmanager
async def streams(url: str, headers: Mapping[str, str]) -> AsyncIterator[Streams]:
    """Messages of the server at this address."""
    limits = httpx2.Timeout(CONNECT_S, read=SILENT_S)
    try:
        client = httpx2.AsyncClient(headers=dict(headers), timeout=limits, transport=_Limited(), trust_env=False)
    except (ValueError, TypeError) as error:
        raise ToolsError(f"{url}: {error}") from None
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(client)
        yield await stack.enter_async_context(
            streamable_http_client(url, http_client=client, max_sse_event_size=MAX_LINE)
        )


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
