"""The panels of figures in the inspector: last turn, tree of its last step, memory; and what all panels share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widget import Widget

from dflash_core.events import StepEvent
from dflash_core.memory import MemoryBreakdown, gib
from dflash_tui.application.amounts import counted
from dflash_tui.text.bars import bar, fit
from dflash_tui.widgets.literal import ByWidth, Static

DIM = "$foreground 70%"
MIN_WIDTH = 24  # cells for which texts are drawn in a narrower panel
NAME, SIZE = 14, 10
FLAGGED = 0.02  # a measurement that differs more than this from its prediction is marked
NO_TURN = Content.assemble(("No turn yet\n", "bold"), ("send a message to see speed and acceptance here", DIM))
NO_STEP = Content.styled("no step yet: the drafts of each step appear here", DIM)
NO_DRAFTS = Content.styled("this step drafted nothing: plain decoding", DIM)
NO_MODEL = Content.assemble(("Memory\n", "bold"), ("known when the model has loaded", DIM))


class Row(Widget, can_focus=True):
    """A row of a panel. Up and Down move between them."""

    ALLOW_SELECT = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "go(-1)", "up", show=False),
        Binding("down", "go(1)", "down", show=False),
    ]

    def action_go(self, count: int) -> None:
        self.query_ancestor(Panel).go(self, count)


class Panel(Vertical):
    """A panel of the inspector; `-active` is the one that the tabs show."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("question_mark", "app.explain", "Explain", key_display="?")]

    def __init__(self, name: str) -> None:
        super().__init__(name=name, id=f"panel-{name}", classes="panel")

    def go(self, widget: Widget, count: int) -> None:
        """Move the focus from one row of the panel to another; at its ends it stays."""
        rows = [one for one in self.screen.focus_chain if isinstance(one, Row) and self in one.ancestors]
        if widget in rows and 0 <= (place := rows.index(widget) + count) < len(rows):
            rows[place].focus()

    def enter(self) -> None:
        """Take the focus when the user asks for this panel."""
        for scroll in self.query(VerticalScroll):
            scroll.focus()


class TextPanel(Panel):
    """A panel of one text."""

    def __init__(self, name: str, empty: Content) -> None:
        super().__init__(name)
        self._empty, self._body = empty, Static(empty, id=f"{name}-body")

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield self._body

    def draw_by(self, drawn: Callable[[int], Content] | None) -> None:
        """Show what `drawn` makes for a width in cells; None: there is nothing yet."""
        self._body.update(ByWidth(lambda width: drawn(max(width, MIN_WIDTH))) if drawn is not None else self._empty)


class TreePanel(TextPanel):
    """One node per line: token, ✓ on the accepted path, own probability, probability of the path to it."""

    def __init__(self) -> None:
        super().__init__("tree", NO_STEP)
        self._heading = Static(Content.styled("Tree", "bold"), id="tree-heading", classes="heading")

    def compose(self) -> ComposeResult:
        yield self._heading
        yield from super().compose()

    def show(self, event: StepEvent | None, step: int, token_text: Callable[[int], str], missing: str = "") -> None:
        """Draw the tree of `event`, the turn's step number `step`. `missing`: why there is never one."""
        if event is None:
            self._heading.update(Content.styled("Tree", "bold"))
            self.draw_by((lambda width: Content.styled(missing, DIM)) if missing else None)
            return
        from dflash_tui.text.step_text import drawn  # with the first step

        nodes = len(event.tree.tokens) - 1
        note = f"  step {step} · {counted(nodes, 'node')} · {event.accepted_depth} accepted"
        self._heading.update(Content.assemble(("Tree", "bold"), (note, DIM)))
        self.draw_by(partial(drawn, event, token_text) if nodes else lambda width: NO_DRAFTS)


def drawn(memory: MemoryBreakdown, width: int, missing: str = "") -> Content:
    """A memory breakdown as text. All bars share one scale: what the program holds. What is free has no bar: on a large
    device it would leave nothing of the others."""
    whole, known = max(memory.predicted, memory.measured, 1), memory.total > 0
    device = f"{memory.device}, {gib(memory.total)}" if known else memory.device
    parts: list[Content | str | tuple[str, str]] = [("Memory", "bold"), (f"  {device}\n\n", "$foreground 70%")]
    bar_width = max(width - NAME - SIZE - 2, 4)
    for one in sorted(memory.components, key=lambda one: one.bytes, reverse=True):
        parts.append(f"{fit(one.name, NAME)}{gib(one.bytes):>{SIZE}}  ")
        parts.append((f"{bar(one.bytes / whole, bar_width)}\n", "$primary"))
        if one.measured is not None:
            found = f"measured {gib(one.measured)}"
            if one.off > FLAGGED:
                parts.append((f"  ! {found}, {one.off:.0%} off\n", "$warning"))
            else:
                parts.append((f"  {found}\n", "$foreground 70%"))
        if one.detail:
            parts.append((f"  {fit(one.detail, width - 2).rstrip()}\n", "$foreground 70%"))
    if not known:
        return Content.assemble(*parts, (missing, "$foreground 70%"))
    parts.append("\n")
    for name, count in (("predicted", memory.predicted), ("measured", memory.measured)):
        shown = gib(count) if count > 0 or name != "measured" else "unknown"
        parts.append(f"{fit(name, NAME)}{shown:>{SIZE}}  ")
        parts.append((f"{bar(count / whole, bar_width)}\n", "$secondary"))
    parts.append(f"{fit('free', NAME)}{gib(memory.free):>{SIZE}}\n")
    return Content.assemble(*parts)
