"""The candidate tree of the last step, with the path that the target took."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content

from dflash_tui.application.amounts import counted
from dflash_tui.widgets.literal import Static
from dflash_tui.widgets.panel import Panel, redraw

if TYPE_CHECKING:
    from dflash_core.events import StepEvent


class TreePanel(Panel):
    """One node per line: token, ✓ on the accepted path, own probability, probability of the path to it."""

    def __init__(self) -> None:
        super().__init__("tree")
        self._event: StepEvent | None = None
        self._step = 0
        self._token_text: Callable[[int], str] = str
        self._missing = ""

    def compose(self) -> ComposeResult:
        yield Static(Content.assemble(("Tree", "bold")), id="tree-heading", classes="heading")
        with VerticalScroll():
            yield Static(_NONE, id="tree-body")

    def show(self, event: StepEvent | None, step: int, token_text: Callable[[int], str], missing: str = "") -> None:
        """Draw the tree of `event`, the turn's step number `step`. `missing`: why there is never one."""
        self._event, self._step, self._token_text, self._missing = event, step, token_text, missing
        self.draw()

    def draw(self) -> None:
        event, step = self._event, self._step
        heading, body = self.query_one("#tree-heading", Static), self.query_one("#tree-body", Static)
        if event is None:
            heading.update(Content.assemble(("Tree", "bold")))
            body.update(Content.styled(self._missing, "$foreground 70%") if self._missing else _NONE)
            return
        from dflash_tui.text.tree_text import drawn  # with the first step

        nodes = len(event.tree.tokens) - 1
        note = f"  step {step} · {counted(nodes, 'node')} · {event.accepted_depth} accepted"
        redraw(heading, Content.assemble(("Tree", "bold"), (note, "$foreground 70%")))
        width = max(self.text_width, 24)
        redraw(body, drawn(event, self._token_text, width) if nodes else _PLAIN)


_NONE = Content.styled("no step yet: the drafts of each step appear here", "$foreground 70%")
_PLAIN = Content.styled("this step drafted nothing: plain decoding", "$foreground 70%")
