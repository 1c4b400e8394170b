"""Containers that are covered by what is in them.

Textual draws each visible line of each container, whatever covers it: six of them lie under a paragraph, and a frame of
a running answer drew four lines for each that is seen. All lines of such a container are the same, so one is drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.geometry import Region, Size
from textual.layout import DockArrangeResult
from textual.strip import Strip
from textual.widget import Widget

# Textual follows one base class only when it looks for a widget's CSS, so what is mixed in must not be a widget.
if TYPE_CHECKING:
    _Mixed = Widget
else:
    _Mixed = object


class Blank(_Mixed):
    """Mixed into a container without borders or padding above and below; those at its sides are in every line."""

    def render_lines(self, crop: Region) -> list[Strip]:
        return super().render_lines(Region(crop.x, crop.y, crop.width, 1)) * crop.height if crop.height else []


class Stack(Blank):
    """Mixed into such a container that is as high as what is in it, none of which asks how high it is.

    Textual keeps an arrangement by the size of the container, so text that grows had everything around and before it
    measured again at every new height, twice in each of six containers. The width alone decides.
    """

    def arrange(self, size: Size, optimal: bool = False) -> DockArrangeResult:
        return super().arrange(Size(size.width, 0), optimal)
