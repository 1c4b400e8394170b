"""Calls of tools in the conversation: a line each, which opens to the arguments and the result."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content

from dflash_core.clean import clean, one_line
from dflash_tui.application.amounts import counted, seconds
from dflash_tui.application.conversations.tool_messages import ToolCall, ToolResult, tool_lines
from dflash_tui.text.blocks import DOT
from dflash_tui.text.calls import argument_lines, in_line
from dflash_tui.widgets.blank import Stack
from dflash_tui.widgets.fold import Foldable, FoldLine
from dflash_tui.widgets.literal import Static
from dflash_tui.widgets.transcript import TurnBlock

SHOWN = 20_000  # characters of a result that are drawn


class CallFold(Stack, Foldable):
    """One call."""

    def __init__(self, call: ToolCall) -> None:
        super().__init__(classes="call")
        self.call = call
        self.result: ToolResult | None = None
        self.line = FoldLine()
        self.body = Static("", classes="thinking-body")

    def compose(self) -> ComposeResult:
        yield self.line
        yield self.body

    def on_mount(self) -> None:
        self.body.display = False
        if not self.line.title:
            self.says("")

    def says(self, what: str) -> None:
        """What is happening to it, or has."""
        shown = f"{self.call.name} {in_line(self.call.arguments)}"
        self.line.title = DOT.join(part for part in (one_line(shown), what) if part)

    def ends(self, result: ToolResult) -> None:
        """Show what came of it."""
        self.result = result
        size = counted(len(result.text), "character")
        spent = seconds(result.seconds) if result.seconds >= 0.05 else ""
        how = {"done": size, "failed": f"✗ failed, {size}", "denied": "✗ not allowed", "cancelled": "✗ stopped"}
        self.says(DOT.join(part for part in (how[result.outcome], spent) if part))
        if self.line.open:
            self.toggled(True)

    @property
    def folded_text(self) -> str:
        text = self.result.text if self.result is not None else ""
        more = f"\n… {len(text) - SHOWN:,} more characters, which the model has read" if len(text) > SHOWN else ""
        return clean(f"{argument_lines(self.call.arguments)}\n\n{text[:SHOWN]}{more}".strip("\n"))

    def toggled(self, is_open: bool) -> None:
        self.body.display = is_open
        self.body.update(Content(self.folded_text) if is_open else "")


class CallsBlock(TurnBlock):
    """The calls of an answer with their results, in the place of a user's message, and the answers to them."""

    def __init__(self, calls: Sequence[ToolCall], results: Sequence[ToolResult] = ()) -> None:
        super().__init__("")
        self.calls = tuple(calls)
        self.results = tuple(results)
        self.folds = {call.id: CallFold(call) for call in calls}

    def message(self) -> ComposeResult:
        yield Stacked(*self.folds.values(), classes="user calls")

    def on_mount(self) -> None:
        for result in self.results:
            self.ends(result)

    def ends(self, result: ToolResult) -> None:
        """Show a result under its call."""
        if result.id in self.folds:
            self.folds[result.id].ends(result)

    @property
    def question(self) -> Sequence[ToolResult]:
        return self.results

    @property
    def message_text(self) -> str:
        return "\n\n".join(tool_lines(self))


class Stacked(Stack, Vertical):
    """The lines of calls, one below the other."""
