"""Tools in the chat: which the model is offered, and its calls: shown, confirmed, made, stopped."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING

from dflash_core.errors import DFlashError
from dflash_tui.application.amounts import seconds
from dflash_tui.application.background import aside
from dflash_tui.application.conversations.tool_messages import ToolCall, ToolResult
from dflash_tui.application.settings.config import user_file
from dflash_tui.application.settings.schema import SERVERS
from dflash_tui.application.settings.tool_servers import allow_always
from dflash_tui.application.tools.offered import OfferedTool, for_template, needs
from dflash_tui.application.tools.rounds import (
    CANCELLED,
    DENIED,
    MAX_ROUNDS,
    Permissions,
    Planned,
    fitting,
    over,
    plan,
    result_tokens,
)
from dflash_tui.chat.controller import Controller, LongTaskEnded
from dflash_tui.widgets.calls import CallFold, CallsBlock, CallScreen
from dflash_tui.widgets.flash import reported
from dflash_tui.widgets.transcript import TurnBlock

if TYPE_CHECKING:
    from dflash_tui.application.tools.servers import ToolServers

LOOK_S = 0.25
NONE = f"no tool servers in {{path}}; write a table [{SERVERS}.NAME] with command and args, or url: docs/tools.md"


@dataclass(eq=False)
class ToolCalls(Controller):
    """No server is started before the user asks for it."""

    servers: ToolServers | None = None
    _offered: tuple[OfferedTool, ...] = ()
    _running: Future[ToolResult] | None = None
    _stopped: bool = False
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)

    @cached_property
    def permissions(self) -> Permissions:
        return Permissions({one.name: one.allow for one in self.state.settings.servers})

    # Servers

    async def opened(self) -> ToolServers:
        """The servers of the settings, none of them started by this. Raises DFlashError without any, or without what
        they need."""
        if not self.state.settings.servers:
            raise DFlashError(NONE.format(path=user_file()))
        needs()

        def loaded() -> ToolServers:
            from dflash_tui.application.tools.servers import ToolServers  # two seconds of imports

            return ToolServers(self.state.settings.servers)

        async with self._opening:
            if (servers := self.servers) is None:
                servers = self.servers = await aside(loaded)
        return servers

    async def begin(self) -> None:
        at_start = [one.name for one in self.state.settings.servers if one.start]
        if at_start and not self.state.no_model:
            with reported(self.say):
                await self.start(at_start)

    async def start(self, names: Sequence[str]) -> None:
        """Start servers, and say how that went once it has. Raises DFlashError for an unknown one."""
        servers = await self.opened()
        for name in names:
            servers.start(name)

        async def tell() -> None:
            connections = [servers.connections[name] for name in names]
            while any(one.state == "starting" for one in connections):
                await asyncio.sleep(LOOK_S)
            note = self.state.session.conversation.tools_note if self.state.session is not None else ""
            self.say("; ".join(filter(None, [*(one.words for one in connections), note])))

        self.screen.run_worker(tell(), group="tools")

    async def end(self, names: Sequence[str]) -> None:
        """End servers. Raises DFlashError for an unknown one."""
        servers = await self.opened()
        for name in names:
            servers.stop(name)

    def close(self) -> None:
        """The app ends: no server outlives it."""
        if self.servers is not None:
            self.servers.close()
            self.servers = None

    def offer(self) -> None:
        """A turn is about to begin: the model gets the tools that there are now."""
        session = self.state.session
        self._offered = self.servers.tools if self.servers is not None else ()
        if session is not None:
            session.conversation.tools = for_template(self._offered)

    # Calls

    async def answered(self, after: TurnBlock, calls: Sequence[ToolCall]) -> CallsBlock | None:
        """Make the calls of an answer. Returns the block whose results the model is asked to go on with; None where the
        turn ends instead."""
        self._stopped = False
        block = await self.transcript.add(CallsBlock(calls), after)
        current, rounds = self.state.conversation, self._rounds()
        conversation = current.card.id if current.card is not None else ""
        results: list[ToolResult] = []
        for planned in plan(calls, self._offered, self.permissions, conversation, rounds=rounds):
            result = await self._one(block.folds[planned.call.id], planned, conversation, len(calls))
            block.ends(result)
            results.append(result)
        block.results = tuple(results)
        if over(rounds):
            self.say(f"the model calls tools for the {rounds + 1}th time; after {MAX_ROUNDS} rounds the turn ends")
        elif not self._stopped:
            return block
        await self._give_up(block)
        return None

    def stop(self) -> None:
        """Esc: end the running call, make no other, and end the turn."""
        self._stopped = True
        if self._running is not None:
            self._running.cancel()
        if isinstance(self.screen.app.screen, CallScreen):
            self.screen.app.screen.dismiss("stop")

    def _rounds(self) -> int:
        """Answers with calls to the last message, before this one."""
        path = reversed(self.state.conversation.branches.path)
        return sum(bool(node.results) for node in takewhile(lambda node: not node.asks, path))

    async def _one(self, fold: CallFold, planned: Planned, conversation: str, count: int) -> ToolResult:
        call, tool = planned.call, planned.tool
        if self._stopped:
            return _cancelled(call)
        if planned.refusal or tool is None:
            return planned.refused
        # An answer to the call before may have allowed this one.
        if planned.asks and not self.permissions.allowed(tool, conversation):
            fold.says("waits for your permission")
            if (meter := self.state.turn.meter) is not None:  # tells a user who is elsewhere
                spent = time.monotonic() - meter.started
                self.screen.post_message(LongTaskEnded(spent, "a call of a tool waits for your permission"))
            reply = await self.screen.app.push_screen_wait(CallScreen(call, tool))
            if reply == "deny":
                return ToolResult(call.id, call.name, DENIED, "denied")
            if reply == "stop":
                self._stopped = True
                return _cancelled(call)
            if reply == "conversation":
                self.permissions.allow_here(tool, conversation)
            elif reply == "always":
                self._allow_always(tool.server)
        return await self._fitted(await self._made(fold, planned), count)

    async def _made(self, fold: CallFold, planned: Planned) -> ToolResult:
        """The call itself. Its line shows how long it has been running."""
        call, began = planned.call, time.monotonic()
        if self.servers is None:
            return _cancelled(call)
        self._running = running = self.servers.call(planned, json.loads(call.arguments))
        try:
            while not running.done():
                fold.says(f"runs… {seconds(time.monotonic() - began)}")
                await asyncio.wait([asyncio.wrap_future(running)], timeout=LOOK_S)
        finally:
            self._running = None
        return _cancelled(call, time.monotonic() - began) if running.cancelled() else running.result()

    async def _fitted(self, result: ToolResult, count: int) -> ToolResult:
        """As much of it as fits into the context."""
        session, report = self.state.session, self.state.turn.report
        if session is None or report is None:
            return result
        used = report.stats.prompt_tokens + report.stats.tokens
        tokens = result_tokens(session.context_length, used, count)
        text = await aside(lambda: fitting(result.text, tokens, session.count))
        return replace(result, text=text)

    def _allow_always(self, server: str) -> None:
        self.permissions.allow_server(server)
        try:
            allow_always(server, user_file())
        except DFlashError as error:
            self.say(f"{error}; it is allowed until the app closes")
        else:
            self.say(f"all tools of {server} are called without asking from now on: allow in {user_file()}")

    async def _give_up(self, block: CallsBlock) -> None:
        """The turn ends with the results, without an answer to them."""
        session, current = self.state.session, self.state.conversation
        if session is None:
            return
        current.give_up_calls(session.conversation, block.results)
        leaf = current.branches.leaf
        answer = await block.add_answer(self.state.used)
        await answer.restore("", "", None, "stopped")
        if leaf is not None:
            answer.node, block.node, block.entered = leaf, current.branches[leaf].parent or "", True


def _cancelled(call: ToolCall, spent: float = 0.0) -> ToolResult:
    return ToolResult(call.id, call.name, CANCELLED, "cancelled", spent)
