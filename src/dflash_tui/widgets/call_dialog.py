"""Asks whether a tool may be called: shows the server, the tool and all arguments."""

from __future__ import annotations

import time
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen

from dflash_core.clean import clean, one_line
from dflash_tui.application.conversations.tool_messages import ToolCall
from dflash_tui.application.tools.offered import OfferedTool
from dflash_tui.application.tools.rounds import Reply
from dflash_tui.text.calls import argument_lines
from dflash_tui.widgets.key_hints import KeyHints
from dflash_tui.widgets.literal import Static


class CallScreen(ModalScreen[Reply]):
    """Enter or y: once; t: this tool in this conversation; s: the server, always; n: not; Esc: stop the turn."""

    DEAF_S: ClassVar[float] = 0.4
    """So long it takes no key: who is typing a message must not answer a question that has just appeared."""
    BINDINGS: ClassVar[list[BindingType]] = [
        ("enter,y", "reply('once')", "Once"),
        ("t", "reply('conversation')", "This tool"),
        ("s", "reply('always')", "This server"),
        ("n", "reply('deny')", "Not"),
        ("escape", "reply('stop')", "Stop"),
    ]

    def __init__(self, call: ToolCall, tool: OfferedTool) -> None:
        super().__init__()
        self._call, self._tool = call, tool
        self._since = time.monotonic()

    def compose(self) -> ComposeResult:
        tool = self._tool
        with Vertical(id="call", classes="dialog"):
            yield Static(
                Content.assemble(
                    ("The model wants to call ", ""),
                    (one_line(tool.own), "bold $accent"),
                    (" of the server ", ""),
                    (tool.server, "bold"),
                )
            )
            if tool.description:
                yield Static(Content.styled(one_line(tool.description, 200), "$foreground 70%"))
            with VerticalScroll():
                yield Static(clean(argument_lines(self._call.arguments)), id="call-arguments")
            yield KeyHints(("Enter", "call it"), ("n", "do not"), ("Esc", "stop the turn"))
            yield KeyHints(("t", "this tool, in this conversation"), ("s", "all of this server, always"))

    def on_mount(self) -> None:
        self._since = time.monotonic()
        self.query_one(VerticalScroll).focus()

    def action_reply(self, reply: Reply) -> None:
        if time.monotonic() - self._since >= self.DEAF_S:
            self.dismiss(reply)
