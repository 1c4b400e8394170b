"""Mixins that make containers and growing text cheap to draw.

Textual draws each visible line of each container, even if it is covered: a paragraph has six containers below it, and a
frame of a running answer drew four lines for each visible one. A new height costs a layout of the whole screen, ten
times the cost of the text in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from textual._compositor import Compositor, ReflowResult
from textual.containers import Vertical
from textual.geometry import Region, Size
from textual.layout import DockArrangeResult
from textual.selection import Selection
from textual.strip import Strip
from textual.visual import Visual, VisualType
from textual.widget import Widget

from dflash_tui.widgets.literal import Static

SPARE = 4  # rows that text which is still being written keeps free below it
# Textual follows only one base class to find a widget's CSS, so a mixin must not be a widget.
if TYPE_CHECKING:
    _Container = Widget
    _Static = Static
else:
    _Container = _Static = object


class Blank(_Container):
    """A mixin for a container without borders or padding above and below; those at its sides are in every line."""

    def render_lines(self, crop: Region) -> list[Strip]:
        return super().render_lines(Region(crop.x, crop.y, crop.width, 1)) * crop.height if crop.height else []


class Stack(Blank):
    """A mixin for such a container that is as high as its contents, if none of these depends on its height.

    Textual caches an arrangement by the size of the container. So growing text caused everything around and before it
    to be measured again at every new height, twice in each of six containers. Only the width matters.
    """

    def arrange(self, size: Size, optimal: bool = False) -> DockArrangeResult:
        return super().arrange(Size(size.width, 0), optimal)


class OneMap(Compositor):
    """Arranges a screen once for each layout. Textual arranges all of it a second time, at the next question for a
    place, where a widget that is not visible was refreshed: those of hidden panels, with each frame of an answer."""

    def reflow(self, parent: Widget, size: Size) -> ReflowResult:
        result = super().reflow(parent, size)
        self._full_map_invalidated = False
        return result

    def update_widgets(self, widgets: set[Widget]) -> None:
        super().update_widgets(widgets & self.visible_widgets.keys())


class StackedRows(Stack, Vertical):
    """Widgets one below the other."""


class Growing(_Static):
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
        return selection.extract(str(self.shown)), "\n"

    async def _update_from_block(self, block: Any) -> None:
        if isinstance(block, type(self)):
            self.shown = block.shown
            self.update(self.shown)
            self._copy_context(block)  # type: ignore[attr-defined]
        else:
            await super()._update_from_block(block)  # type: ignore[misc]
