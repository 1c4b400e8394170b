"""Calls of tools: a line each in the conversation, and the dialog that asks whether one may be made."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen

from dflash_core.clean import clean, one_line
from dflash_tui.application.amounts import counted, seconds
from dflash_tui.application.conversations.tool_messages import ToolCall, ToolResult, tool_lines
from dflash_tui.application.tools.offered import OfferedTool
from dflash_tui.application.tools.rounds import Reply
from dflash_tui.text.bars import clip
from dflash_tui.text.blocks import DOT
from dflash_tui.widgets.dialogs import KeyHints
from dflash_tui.widgets.fold import FoldedText
from dflash_tui.widgets.literal import Static
from dflash_tui.widgets.mixins import Stack, StackedRows
from dflash_tui.widgets.transcript import TurnBlock

MAX_LINE = 60  # cells of the arguments in a line
MAX_VALUE = 24


def _texts(arguments: str, indent: int | None = None) -> Iterator[tuple[str, str]]:
    """The arguments of a call by name, each as a text."""
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        found = arguments
    for name, value in (found if isinstance(found, dict) else {"": found}).items():
        yield name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=indent)


def in_line(arguments: str) -> str:
    """Arguments in a few words: path=a.txt lines=3."""
    parts = (f"{name}={clip(' '.join(text.split()), MAX_VALUE)}" for name, text in _texts(arguments))
    return clip(" ".join(parts), MAX_LINE)


def argument_lines(arguments: str) -> str:
    """All of them, a value below its name where it has several lines."""
    lines = (f"{name}:\n{text}" if "\n" in text else f"{name}: {text}" for name, text in _texts(arguments, indent=2))
    return "\n".join(lines) or "(no arguments)"


SHOWN = 20_000  # characters of a result that are drawn


class CallFold(Stack, FoldedText):
    """One call."""

    def __init__(self, call: ToolCall) -> None:
        super().__init__(classes="call")
        self.call = call
        self.result: ToolResult | None = None
        self.says("")

    def says(self, *what: str) -> None:
        shown = one_line(f"{self.call.name} {in_line(self.call.arguments)}")
        self.line.title = DOT.join(filter(None, (shown, *what)))

    def ends(self, result: ToolResult) -> None:
        self.result = result
        size = counted(len(result.text), "character")
        how = {"done": size, "failed": f"✗ failed, {size}", "denied": "✗ not allowed", "cancelled": "✗ stopped"}
        self.says(how[result.outcome], seconds(result.seconds) if result.seconds >= 0.05 else "")
        if self.line.open:
            self.toggled(True)

    @property
    def folded_text(self) -> str:
        text = self.result.text if self.result is not None else ""
        more = f"\n… {len(text) - SHOWN:,} more characters, which the model has read" if len(text) > SHOWN else ""
        return clean(f"{argument_lines(self.call.arguments)}\n\n{text[:SHOWN]}{more}".strip("\n"))


class CallsBlock(TurnBlock):
    """The calls of an answer with their results, in the place of a user's message, and the answers to them."""

    def __init__(self, calls: Sequence[ToolCall], results: Sequence[ToolResult] = ()) -> None:
        super().__init__("")
        self.calls = tuple(calls)
        self.results = tuple(results)
        self.folds = {call.id: CallFold(call) for call in calls}

    def message(self) -> ComposeResult:
        yield StackedRows(*self.folds.values(), classes="user calls")

    def on_mount(self) -> None:
        for result in self.results:
            self.ends(result)

    def ends(self, result: ToolResult) -> None:
        if result.id in self.folds:
            self.folds[result.id].ends(result)

    @property
    def question(self) -> Sequence[ToolResult]:
        return self.results

    @property
    def message_text(self) -> str:
        return "\n\n".join(tool_lines(self))


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
        self._call, self._tool, self._since = call, tool, time.monotonic()

    def compose(self) -> ComposeResult:
        tool = self._tool
        with Vertical(id="call", classes="dialog"):
            own, server = (one_line(tool.own), "bold $accent"), (tool.server, "bold")
            yield Static(Content.assemble("The model wants to call ", own, " of the server ", server))
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
