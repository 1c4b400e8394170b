"""Markdown blocks that are still being written: they grow by several rows at once.

A new height costs a layout of the whole screen, ten times the cost of the text in it. So the open block keeps a few
spare empty rows, and most appends only repaint it. A complete block has its exact height.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from textual.app import ComposeResult
from textual.content import Content
from textual.events import Click
from textual.geometry import Size
from textual.message import Message
from textual.selection import Selection
from textual.visual import Visual, VisualType
from textual.widgets import Label, Markdown
from textual.widgets.markdown import MarkdownBlock, MarkdownFence

from dflash_core.clean import one_line
from dflash_tui.widgets.literal import Caption, Static

ROOM = 4  # rows
# Textual follows only one base class to find a widget's CSS, so a mixin must not be a widget.
if TYPE_CHECKING:
    _Mixed = Static
else:
    _Mixed = object
_Paragraph: Any = Markdown.BLOCKS["paragraph_open"]


class Roomy(_Mixed):
    """A mixin for a Static: while `growing`, its height is rounded up to a multiple of `ROOM`."""

    growing = False

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        height = super().get_content_height(container, viewport, width)
        return -(-height // ROOM) * ROOM if self.growing else height

    def update(self, content: VisualType = "", *, layout: bool = True) -> None:
        super().update(content, layout=False)
        self.clear_cached_dimensions()
        size = self.content_size
        if layout and not (self.growing and size and self.get_content_height(size, size, size.width) == size.height):
            self.refresh(layout=True)

    def grow(self, growing: bool) -> None:
        """Start or stop keeping spare rows."""
        if growing != self.growing:
            self.growing = growing
            self.refresh(layout=True)


class Drawn(Roomy):
    """A mixin for a Markdown block that draws `shown` in place of its text."""

    shown: Visual

    def get_selection(self, selection: Selection) -> tuple[str, str]:
        """The text under a selection, as it is drawn."""
        return selection.extract(str(self.shown)), "\n"

    async def _update_from_block(self, block: Any) -> None:
        if isinstance(block, type(self)):
            self.shown = block.shown
            self.update(self.shown)
            self._copy_context(block)  # type: ignore[attr-defined]
        else:
            await super()._update_from_block(block)  # type: ignore[misc]


class Paragraph(Roomy, _Paragraph):  # type: ignore[misc]
    """A paragraph."""


class Code(Roomy, Label):
    """The lines of a fence."""


class Fence(MarkdownFence):
    """A fence, whose lines keep the room. Its frame names the language; a click on it copies the code."""

    class Copied(Message):
        """The user wants this code."""

        def __init__(self, code: str) -> None:
            super().__init__()
            self.code = code

    @classmethod
    def highlight(cls, code: str, language: str, ansi: bool = False, dark: bool = False) -> Content:
        """Where no language is named, yet or at all, it is text: Textual loads every lexer there is to guess one."""
        return super().highlight(code, language or "text", ansi, dark)

    def on_click(self, event: Click) -> None:
        if event.button == 1 and event.screen_y == self.region.y:  # on the head; on the text one selects
            event.stop()
            self.post_message(self.Copied(self.code))

    def compose(self) -> ComposeResult:
        yield Caption(self._head, classes="fence-head")
        yield Code(self._highlighted_code, id="code-content", expand=True)

    @property
    def _head(self) -> Content:
        language = one_line(self.lexer.split()[0] if self.lexer.strip() else "code")[:20]
        return Content.assemble((language, "bold"), "  click copies")

    def _copy_context(self, block: MarkdownBlock) -> None:
        before = self.lexer
        super()._copy_context(block)
        if self.lexer != before:  # the line that opens the fence came in two parts
            self.query_one(".fence-head", Caption).update(self._head)

    def grow(self, growing: bool) -> None:
        """Start or stop keeping spare rows."""
        for code in self.query(Code):
            code.grow(growing)
