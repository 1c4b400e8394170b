"""The messages of a server before the package `mcp` reads them: a list of tools is checked here, tool by tool.

The package refuses a whole list for one broken tool in it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from mcp.client._transport import ReadStream, WriteStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCResponse

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

Streams: TypeAlias = "tuple[ReadStream[SessionMessage | Exception], WriteStream[SessionMessage]]"
Usable: TypeAlias = Callable[[list[Any]], list[Any]]


class CheckedLists:
    """Messages; lists of tools have what `usable` returns of them."""

    def __init__(self, stream: ReadStream[SessionMessage | Exception], usable: Usable) -> None:
        self._stream, self._usable = stream, usable

    async def receive(self) -> SessionMessage | Exception:
        return self._checked(await self._stream.receive())

    def __aiter__(self) -> CheckedLists:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        return self._checked(await self._stream.__anext__())

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> CheckedLists:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stream.__aexit__(kind, error, trace)

    def _checked(self, item: SessionMessage | Exception) -> SessionMessage | Exception:
        if isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCResponse):
            found = item.message.result.get("tools")
            if isinstance(found, list):
                item.message.result["tools"] = self._usable(found)
        return item


@asynccontextmanager
async def checked(transport: AbstractAsyncContextManager[Streams], usable: Usable) -> AsyncIterator[Streams]:
    """A transport whose lists of tools have what `usable` returns of them."""
    async with transport as (read, write):
        yield CheckedLists(read, usable), write
