"""Mixins for blocks of text that are still being written: they grow by several rows at once.

A new height costs a layout of the whole screen, ten times the cost of the text in it. So the open block keeps a few
spare empty rows, and most appends only repaint it. A complete block has its exact height.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from textual.geometry import Size
from textual.selection import Selection
from textual.visual import Visual, VisualType

from dflash_tui.widgets.literal import Static

SPARE = 4  # rows
# Textual follows only one base class to find a widget's CSS, so a mixin must not be a widget.
if TYPE_CHECKING:
    _Mixed = Static
else:
    _Mixed = object


class Growing(_Mixed):
    """A mixin for a Static: while `growing`, its height is rounded up to a multiple of `SPARE`."""

    growing = False

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        height = super().get_content_height(container, viewport, width)
        return -(-height // SPARE) * SPARE if self.growing else height

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


class Drawn(Growing):
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
