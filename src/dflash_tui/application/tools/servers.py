"""The servers of the settings, on a thread with an event loop: nothing that a server sends may hold up the app."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, TypeVar

from dflash_core.errors import DFlashError
from dflash_tui.application.conversations.tool_messages import ToolResult
from dflash_tui.application.log import LOG
from dflash_tui.application.settings.tool_servers import ToolServer
from dflash_tui.application.tools.connection import Connection
from dflash_tui.application.tools.offered import OfferedTool, together
from dflash_tui.application.tools.rounds import Planned

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
