"""Servers of tools: each is started, says which tools it has, and calls them. They are on a thread with an event loop:
nothing that a server sends may hold up the app."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Literal, TypeVar

from mcp import Client, MCPError
from mcp_types import Implementation
from pydantic import ValidationError

from dflash_core.clean import one_line
from dflash_core.errors import MESSAGE, DFlashError
from dflash_tui import __version__
from dflash_tui.application.amounts import counted
from dflash_tui.application.conversations.tool_messages import ToolResult
from dflash_tui.application.log import LOG
from dflash_tui.application.settings.tool_servers import ToolServer, expanded
from dflash_tui.application.tools.offered import LeftOut, OfferedTool, listed, problem, together
from dflash_tui.application.tools.rounds import MAX_CHARACTERS, Planned, as_text, shortened
from dflash_tui.application.tools.stdio import ServerProcess, Streams, checked, over_http

START_S = 60.0
"""How long a server has to say which tools it has: a first start may have to fetch packages."""
_PAGES = 50  # of a list of tools
State = Literal["off", "starting", "on", "failed"]


class Connection:
    """`state`, `tools` and `left_out` may be read from any thread; `why` says what has failed, one line."""

    def __init__(self, server: ToolServer) -> None:
        self.server = server
        self.state: State = "off"
        self.why = ""
        self.tools: tuple[OfferedTool, ...] = ()
        self.left_out: tuple[LeftOut, ...] = ()
        self._listed: list[Any] = []  # as the server sent them
        self._client: Client | None = None
        self._process: ServerProcess | None = None

    @property
    def words(self) -> str:
        name = self.server.name
        if self.state != "on":
            return f"{name}: {self.why}" if self.state == "failed" else f"{name} is {self.state}"
        beside = f", {len(self.left_out)} left out" if self.left_out else ""
        return f"{name} has {counted(len(self.tools), 'tool')}{beside}"

    async def run(self, start_s: float = START_S) -> None:
        """Connect, and stay connected until cancelled or until the server goes away. Never raises but for that."""
        self.state, self.why, self.tools, self.left_out = "starting", "", (), ()
        self._listed = []
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(start_s):
                    info = Implementation(name="dflash-tui", version=__version__)
                    transport = checked(self._streams(), self._usable)
                    client = await stack.enter_async_context(Client(transport, client_info=info, cache=None))
                    await self._list(client)
                self._client, self.state = client, "on"
                await self._gone()
        except asyncio.CancelledError:
            self.state = "off"
            raise
        except BaseException as error:
            self._fail(self._explained(error, start_s))
        finally:
            self._client = None

    def kill(self) -> None:
        """End its process at once."""
        if self._process is not None:
            self._process.kill()

    async def _gone(self) -> None:
        """Wait until the process writes no more; a server over HTTP is only known to be gone when it is called."""
        if self._process is None:
            await asyncio.Event().wait()
        else:
            await self._process.gone.wait()
            self._client = None
            self._fail(self._process.ended())  # at once: ending the process may take a while
            raise DFlashError(self.why)

    def _fail(self, why: str) -> None:
        self.state, self.why, self.tools = "failed", why, ()
        LOG.warning("tools of %s: %s", self.server.name, why)

    def _explained(self, error: BaseException, start_s: float) -> str:
        if self._process is not None and self._process.problem:
            return self._process.problem
        if isinstance(_first_cause(error), TimeoutError):
            late = f"it has not listed its tools within {start_s:g} s"
            skipped = self._process.skipped if self._process is not None else 0
            return late + (f"; it wrote {skipped:,} lines that are no messages" if skipped else "")
        if self._process is not None and self._process.gone.is_set():
            return self._process.ended()
        return _reason(error)

    @asynccontextmanager
    async def _streams(self) -> AsyncIterator[Streams]:
        server = self.server
        if server.url:
            self._process = None
            headers = {name: expanded(value, os.environ) for name, value in server.headers.items()}
            for name, value in headers.items():
                if not (value.isascii() and value.isprintable()):  # its own error would quote the value
                    raise DFlashError(f"the header {name} has characters that it cannot carry; look at its variables")
            async with over_http(expanded(server.url, os.environ), headers) as found:
                yield found
            return
        self._process = process = ServerProcess()
        env = {name: expanded(value, os.environ) for name, value in server.env.items()}
        args = [expanded(value, os.environ) for value in server.args]
        async with process.streams(server.command, args, env, server.cwd) as found:
            yield found

    def _usable(self, found: list[Any]) -> list[Any]:
        """The tools of a list without the broken ones, for which the package would refuse the whole list."""
        if self.state == "starting":  # a later list is not looked at
            self._listed += found
        return [one for one in found if not problem(one)]

    async def _list(self, client: Client) -> None:
        cursor: str | None = None
        for _ in range(_PAGES):
            cursor = (await client.list_tools(cursor=cursor)).next_cursor
            if cursor is None:
                break
        self.tools, self.left_out = listed(self.server.name, self._listed)

    async def call(self, tool: str, arguments: dict[str, Any]) -> tuple[str, bool]:
        """The text of a result, and whether it is that of a failure. Raises DFlashError; cancelling ends the wait."""
        client, timeout = self._client, self.server.timeout
        if client is None:
            raise DFlashError(f"the server {self.server.name} is not there: {self.why or 'it is off'}")
        try:
            async with asyncio.timeout(timeout):
                result = await client.call_tool(tool, arguments)
                content = [one.model_dump(mode="json", by_alias=True, exclude_none=True) for one in result.content]
                text = as_text(content, result.structured_content, failed=bool(result.is_error))
                return shortened(text, MAX_CHARACTERS), bool(result.is_error)
        except TimeoutError:
            raise DFlashError(f"no answer within {timeout:g} s") from None
        except Exception as error:
            raise DFlashError(await self._lost(error)) from None

    async def _lost(self, error: Exception) -> str:
        """Why a call failed: the end of the process says more than the broken connection."""
        if self._process is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.gone.wait(), 0.1)
            if self._process.gone.is_set():
                return self._process.ended()
        return _reason(error)


def _first_cause(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _reason(error: BaseException) -> str:
    """An error of a server or of its protocol, as one line."""
    error = _first_cause(error)
    if isinstance(error, DFlashError):
        return str(error)
    if isinstance(error, MCPError):
        return one_line(f"it answers: {error.message}", MESSAGE)
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        return one_line(f"its answer is not as the protocol says: {place}: {first['msg']}", MESSAGE)
    return one_line(str(error) or type(error).__name__, MESSAGE)


T = TypeVar("T")
CLOSE_S = 4.0  # more than a process gets to end by itself, and then after SIGTERM
_LIBRARIES = ("mcp", "httpx2", "httpcore2")


class ToolServers:
    """Usable from any thread. No server is started before `start` names it; `close` ends all of them."""

    def __init__(self, servers: Sequence[ToolServer]) -> None:
        self.connections = {one.name: Connection(one) for one in servers}
        self._off: set[tuple[str, str]] = set()  # tools that the user has turned off
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._loop = asyncio.new_event_loop()
        for name in _LIBRARIES:  # without a handler of its own, logging writes warnings over the app
            logger = logging.getLogger(name)
            logger.propagate = False
            logger.handlers = [*LOG.handlers] or [logging.NullHandler()]
        self._thread = threading.Thread(target=self._loop.run_forever, name="dflash-tools", daemon=True)
        self._thread.start()

    @property
    def tools(self) -> tuple[OfferedTool, ...]:
        on = [one for one in self.connections.values() if one.state == "on"]
        return together([[tool for tool in one.tools if self.offers(tool)] for one in on])

    def offers(self, tool: OfferedTool) -> bool:
        return (tool.server, tool.own) not in self._off

    def toggle_tool(self, tool: OfferedTool) -> None:
        """Offer it or not, from the next message on."""
        self._off ^= {(tool.server, tool.own)}

    @property
    def starting(self) -> bool:
        return any(one.state == "starting" for one in self.connections.values())

    def start(self, name: str) -> None:
        """Start a server, unless it runs. Raises DFlashError for an unknown one."""
        connection = self._connection(name)
        if connection.state in ("off", "failed"):
            connection.state = "starting"  # at once, for those who look
            self._submit(self._start(connection))

    def stop(self, name: str) -> None:
        self._connection(name)
        self._submit(self._stop(name))

    def call(self, planned: Planned, arguments: dict[str, Any]) -> Future[ToolResult]:
        """Make a call. The result is there whatever happens; cancelling the future ends the call."""
        return self._submit(self._call(planned, arguments))

    def close(self, timeout: float = CLOSE_S) -> bool:
        """End all servers; False if that took too long, and they were killed."""
        if not self._thread.is_alive():
            return True
        ended = self._submit(self._stop_all())
        with suppress(TimeoutError, CancelledError):
            ended.result(timeout)
        in_time = ended.done()
        for connection in self.connections.values() if not in_time else ():
            connection.kill()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout)
        return in_time and not self._thread.is_alive()

    def _connection(self, name: str) -> Connection:
        if name not in self.connections:
            known = ", ".join(self.connections) or "none"
            raise DFlashError(f"no server {name!r} in the settings; there are: {known}")
        return self.connections[name]

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _start(self, connection: Connection) -> None:
        name = connection.server.name
        await self._stop(name)
        connection.state = "starting"
        self._runs[name] = asyncio.create_task(connection.run())

    async def _stop(self, name: str) -> None:
        run = self._runs.pop(name, None)
        if run is not None:
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)
        self.connections[name].state = "off"

    async def _stop_all(self) -> None:
        await asyncio.gather(*(self._stop(name) for name in self.connections))

    async def _call(self, planned: Planned, arguments: dict[str, Any]) -> ToolResult:
        call, tool = planned.call, planned.tool
        assert tool is not None, "a call of no tool"
        began = time.monotonic()
        try:
            text, failed = await self.connections[tool.server].call(tool.own, arguments)
        except DFlashError as error:
            text, failed = f"Error: {error}", True
        return ToolResult(call.id, call.name, text, "failed" if failed else "done", time.monotonic() - began)
