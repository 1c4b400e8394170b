"""`tools`: the tool servers of the settings, started to list their tools. Also what `ask --tools` does."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from dflash_core.clean import one_line
from dflash_core.errors import DFlashError
from dflash_tui.application.conversations.tool_messages import ToolCall, ToolResult
from dflash_tui.application.settings.config import user_file
from dflash_tui.application.settings.schema import SERVERS
from dflash_tui.application.settings.tool_servers import ALL, ToolServer
from dflash_tui.application.tools.offered import needs
from dflash_tui.application.tools.rounds import CANCELLED, NOT_ASKED, Permissions, fitting, over, plan, result_tokens
from dflash_tui.cli.options import Invocation
from dflash_tui.terminal.output import Notes, write_json, write_out

if TYPE_CHECKING:
    from dflash_tui.application.tools.servers import ToolServers

LOOK_S = 0.05


def run(call: Invocation) -> int:
    """List servers and their tools. Returns the exit code: 1 where a server did not start."""
    with started(call.config.settings.servers, call.args.names) as servers:
        found = [servers.connections[name] for name in call.args.names or servers.connections]
        if call.args.json:
            listed = [
                {
                    "name": one.server.name, "state": one.state, "why": one.why,
                    "tools": [{"name": tool.own, "description": tool.description} for tool in one.tools],
                    "left_out": [{"name": left.name, "why": left.why} for left in one.left_out],
                }
                for one in found
            ]  # fmt: skip
            write_json({"servers": listed})
        for one in found if not call.args.json else ():
            tools = [f"  {one_line(tool.own):<24} {one_line(tool.description)}\n" for tool in one.tools]
            left = [f"  {left.name:<24} left out: {left.why}\n" for left in one.left_out]
            write_out("".join([f"{one.words}\n", *tools, *left]))
        return int(any(one.state == "failed" for one in found))


@contextmanager
def started(servers: Sequence[ToolServer], names: Sequence[str] = ()) -> Iterator[ToolServers]:
    """The servers of the settings, those of these names started; all without any. Raises DFlashError."""
    if not servers:
        raise DFlashError(f"no tool servers in {user_file()}; write a table [{SERVERS}.NAME] there")
    needs()
    from dflash_tui.application.tools.servers import ToolServers  # seconds of imports

    found = ToolServers(servers)
    try:
        for name in names or found.connections:
            found.start(name)
        while found.starting:
            time.sleep(LOOK_S)
        yield found
    finally:
        found.close()


class Unattended:
    """Calls where nobody can be asked: those that the settings allow, or the command line."""

    def __init__(self, servers: ToolServers, allow: Sequence[str], notes: Notes) -> None:
        """`allow`: names of servers and of tools."""
        self.servers, self._notes = servers, notes
        always = {name: one.server.allow | {*allow} for name, one in servers.connections.items()}
        self._permissions = Permissions(always | {name: frozenset({ALL}) for name in allow if name in always})
        self.rounds = 0
        self.made: list[tuple[ToolCall, ToolResult]] = []

    def answered(
        self,
        calls: Sequence[ToolCall],
        capacity: int,
        used: int,
        count: Callable[[str], int],
        stopped: Callable[[], bool],
    ) -> list[ToolResult] | None:
        """The results of an answer's calls; None where the turn ends instead. `used`: tokens of the context, of
        `capacity`; `count`: those of a text; `stopped`: whether the user has ended it."""
        planned = plan(calls, self.servers.tools, self._permissions, "", rounds=self.rounds)
        if over(self.rounds):
            return None
        self.rounds += 1
        results = []
        for one in planned:
            if one.refusal or one.tool is None:
                result = one.refused
            elif one.asks:
                result = ToolResult(one.call.id, one.call.name, NOT_ASKED, "denied")
            else:
                running = self.servers.call(one, json.loads(one.call.arguments))
                while not running.done():
                    if stopped():
                        running.cancel()
                    time.sleep(LOOK_S)
                try:
                    result = running.result()
                except CancelledError:
                    result = ToolResult(one.call.id, one.call.name, CANCELLED, "cancelled")
            most = result_tokens(capacity, used, len(calls))
            results.append(replace(result, text=fitting(result.text, most, count)))
            self.made.append((one.call, results[-1]))
            self._notes.line(f"tool: {one.call.name} {one_line(one.call.arguments, 200)}: {result.outcome}")
        return None if stopped() else results
