"""Containers that are covered by their contents.

Textual draws each visible line of each container, even if it is covered: a paragraph has six containers below it, and a
frame of a running answer drew four lines for each visible one. All lines of such a container are equal, so only one is
drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.geometry import Region, Size
from textual.layout import DockArrangeResult
from textual.strip import Strip
from textual.widget import Widget

# Textual follows only one base class to find a widget's CSS, so a mixin must not be a widget.
if TYPE_CHECKING:
    _Mixed = Widget
else:
    _Mixed = object


class Blank(_Mixed):
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
