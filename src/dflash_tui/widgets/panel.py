"""What the four inspector panels share."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.widget import Widget

from dflash_tui.widgets.literal import Static


class Row:
    """A mixin for the rows of a panel, between which Up and Down move."""

    def action_go(self, count: int) -> None:
        assert isinstance(self, Widget)
        self.query_ancestor(Panel).go(self, count)


class Panel(Vertical):
    """A panel of the inspector; `-active` is the one that the tabs show."""

    TITLE = ""
    BINDINGS: ClassVar[list[BindingType]] = [Binding("question_mark", "app.explain", "Explain", key_display="?")]

    def __init__(self, name: str) -> None:
        super().__init__(name=name, id=f"panel-{name}", classes="panel")

    @property
    def text_width(self) -> int:
        """Width of a line in cells, without the margin before the scrollbar."""
        return self.query_one(VerticalScroll).scrollable_content_region.width - 1

    def draw(self) -> None:
        """Draw the last contents again, at the current width."""

    def on_resize(self, event: Resize) -> None:
        self.draw()

    def go(self, widget: Widget, count: int) -> None:
        """Move the focus from one row of the panel to another; at its ends it stays."""
        rows = [one for one in self.screen.focus_chain if isinstance(one, Row) and self in one.ancestors]
        if widget in rows and 0 <= (place := rows.index(widget) + count) < len(rows):
            rows[place].focus()

    def enter(self) -> None:
        """Take the focus when the user asks for this panel."""
        scroll = self.query("VerticalScroll")
        if scroll:
            scroll.first().focus()


def redraw(body: Static, content: Content) -> None:
    """Show new figures in a panel; lay out again only if the number of lines has changed."""
    before = body.visual
    same = isinstance(before, Content) and before.plain.count("\n") == content.plain.count("\n")
    body.update(content, layout=not same)
