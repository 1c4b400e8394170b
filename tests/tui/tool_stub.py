"""Servers of tools that are none: the same figures in every picture."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from dflash_tui.app import DFlashApp
from dflash_tui.application.conversations.tool_messages import ToolCall, ToolResult
from dflash_tui.application.settings.tool_servers import ToolServer
from dflash_tui.application.tools.offered import LeftOut, OfferedTool, together
from dflash_tui.application.tools.rounds import Planned
from dflash_tui.application.tools.servers import Connection

SERVERS = (
    ToolServer("files", "npx", ("-y", "a-server")),
    ToolServer("tracker", url="https://mcp.example.org/mcp", allow=frozenset({"search"})),
    ToolServer("broken", "uvx"),
)
READ = OfferedTool("files", "read_file", "read_file", "Reads a file of the notes.", {"type": "object"})
WRITE = OfferedTool("files", "write_file", "write_file", "Writes a file.", {"type": "object"})
CALL = ToolCall("call_1", "read_file", '{"path": "plan.md", "lines": 20}')
RESULT = "# Plan\n\n- measure first\n- then change one thing\n"


class Stub:
    """Answers at once."""

    def __init__(self) -> None:
        self.connections = {one.name: Connection(one) for one in SERVERS}
        files, broken = self.connections["files"], self.connections["broken"]
        files.state, files.tools = "on", (READ, WRITE)
        files.left_out = (LeftOut("move", "its schema is broken: 3 is not of type 'object'"),)
        broken.state, broken.why = "failed", "it has ended with code 1: no module named server"
        self.off = {WRITE.own}

    @property
    def tools(self) -> tuple[OfferedTool, ...]:
        return together([[READ]])

    def offers(self, tool: OfferedTool) -> bool:
        return tool.own not in self.off

    def call(self, planned: Planned, arguments: dict[str, Any]) -> Future[ToolResult]:
        done = Future[ToolResult]()
        done.set_result(ToolResult(planned.call.id, planned.call.name, RESULT, "done", 0.42))
        return done

    def start(self, name: str) -> None: ...

    def stop(self, name: str) -> None: ...

    def close(self, timeout: float = 0.0) -> bool:
        return True


def with_stub(app: DFlashApp) -> Stub:
    """Give the chat these servers."""
    app.state.settings = replace(app.state.settings, servers=SERVERS)
    stub = Stub()
    app.chat.parts.tools.servers = stub  # type: ignore[assignment]
    return stub
