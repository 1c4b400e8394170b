"""A server of tools as a process: JSON messages by line over its input and output; and what a server over HTTP sends.

The transport of the package `mcp` buffers a line of any length, copying it with each piece, and writes to stderr, where
the app draws. This one refuses a line that is too long, skips lines that are no messages, and keeps the end of what the
process writes to its stderr.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import httpx2
from anyio.abc import ObjectReceiveStream
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client._transport import ReadStream, WriteStream
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCResponse, jsonrpc_message_adapter

from dflash_core.clean import one_line
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
        try:
            response = await super().handle_async_request(request)
        except httpx2.ConnectError as error:
            raise DFlashError(f"nothing answers at its url ({error}); start the server or correct the url") from None
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


LEAVE_S = 1.0
"""How long a process has to end by itself, and then after SIGTERM."""
_TAIL = 20  # lines of stderr that are stored
_PIECE = 64 * 1024
_LOOK_S = 0.02


class ServerProcess:
    """`problem`: what has gone wrong with it, one line."""

    def __init__(self) -> None:
        self.problem = ""
        self.skipped = 0
        """Lines that were no messages."""
        self.gone = asyncio.Event()
        """It writes no more, and was not ended here."""
        self._ending = False
        self._stderr: deque[str] = deque(maxlen=_TAIL)
        self._process: Process | None = None

    @asynccontextmanager
    async def streams(
        self, command: str, args: Sequence[str], env: Mapping[str, str], cwd: Path | None
    ) -> AsyncIterator[Streams]:
        """Start it; it ends with the block. Raises DFlashError where it cannot be started."""
        try:
            process = self._process = await asyncio.create_subprocess_exec(
                command, *args, stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd=cwd, limit=MAX_LINE, start_new_session=True,
                env=get_default_environment() | dict(env),
            )  # fmt: skip
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise DFlashError(f"{command} cannot be started: {why}") from None
        incoming, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        write, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
        tasks = [
            asyncio.create_task(self._read(process, incoming)),
            asyncio.create_task(self._write(process, outgoing)),
            asyncio.create_task(self._listen(process)),
        ]
        try:
            yield read, write
        finally:
            self._ending = True
            try:
                await asyncio.shield(_end(process))  # a process is ended also where the caller was cancelled
            finally:
                for task in tasks:
                    task.cancel()
                for stream in (incoming, read, write, outgoing):
                    stream.close()

    def kill(self) -> None:
        """End it at once, where there is no time to wait. Usable from any thread."""
        if self._process is not None and self._process.returncode is None:
            _signal(self._process, signal.SIGKILL)

    def ended(self) -> str:
        if self.problem:
            return self.problem
        code = self._process.returncode if self._process is not None else None
        how = "it has ended" if code is None else f"it has ended with {'signal' if code < 0 else 'code'} {abs(code)}"
        last = next((line for line in reversed(self._stderr) if line.strip()), "")
        return one_line(f"{how}: {last}" if last else how)

    async def _read(self, process: Process, incoming: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        assert process.stdout is not None
        try:
            while line := await process.stdout.readline():
                try:
                    message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                except (ValueError, RecursionError):
                    self.skipped += bool(line.strip())
                    continue
                await incoming.send(SessionMessage(message))
        except ValueError:  # of readline
            self.problem = f"it sent a message of more than {MAX_LINE // 2**20} MiB"
        except (OSError, anyio.ClosedResourceError, anyio.BrokenResourceError):
            pass
        finally:
            if not self.problem:
                await _exits(process)  # its code is part of the reason
            if not self._ending:
                self.gone.set()
            incoming.close()

    async def _write(self, process: Process, outgoing: MemoryObjectReceiveStream[SessionMessage]) -> None:
        assert process.stdin is not None
        with contextlib.suppress(OSError, anyio.ClosedResourceError):
            async for message in outgoing:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(text.encode() + b"\n")
                await process.stdin.drain()

    async def _listen(self, process: Process) -> None:
        """Read stderr, so that a talkative process does not wait for it."""
        assert process.stderr is not None
        rest = b""
        while piece := await process.stderr.read(_PIECE):
            *lines, rest = (rest + piece).split(b"\n")
            rest = rest[-_PIECE:]
            self._stderr += [line[:400].decode(errors="replace") for line in lines[-_TAIL:]]
        self._stderr.append(rest[:400].decode(errors="replace"))


async def _end(process: Process) -> None:
    """Close its input, then end it and what it has started."""
    if process.stdin is not None:
        process.stdin.close()
    exited = await _exits(process)
    _signal(process, signal.SIGTERM)  # also what a process that has ended by itself has left
    if not exited and not await _exits(process):
        _signal(process, signal.SIGKILL)
        await _exits(process)
    # Its pipes stay open where a child has them. Nothing public closes them.
    if (transport := getattr(process, "_transport", None)) is not None:
        transport.close()


async def _exits(process: Process) -> bool:
    """Whether it ends in time. `Process.wait` would also wait for children that have its pipes."""
    for _ in range(int(LEAVE_S / _LOOK_S)):
        if process.returncode is not None:
            break
        await asyncio.sleep(_LOOK_S)
    return process.returncode is not None


def _signal(process: Process, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
