"""A compositor that lays out once where Textual does twice, and draws only visible lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import cast

from textual._compositor import Compositor, ReflowResult
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

from dflash_tui.widgets.marks import Marks, marked


class Frugal(Compositor):
    """Places widgets and composes their lines as its base does, with the same resulting cells, but with less work.

    In Textual, a widget that has grown requests a layout of the whole screen, in case its scrollbars need space. By
    then the screen is laid out, and a scrollbar that appears or disappears requests a layout itself.

    In Textual, a change draws all lines of every widget below it, also of covered containers, and of half the screen
    when a cursor blinks. Here a line is drawn only if part of it is visible.

    `marks`: the marked stretches in the texts of widgets.
    """

    marks: Mapping[Widget, Marks] = MappingProxyType({})

    def reflow(self, parent: Widget, size: Size) -> ReflowResult:
        """Lay out everything, and give each widget its new size."""
        result = super().reflow(parent, size)
        self._full_map_invalidated = False  # the full map has just been built
        for widget, place in self.layers:
            # A widget scrolled to its end was placed by its previous size, so it does need another layout.
            again = widget._anchored and widget.container_size != place.container_size
            widget._size_updated(place.region.size, place.virtual_size, place.container_size, layout=again)
        for widget in result.shown:
            widget._layout_required = False  # requested before it had a place
        waiting = {widget for widget in self.visible_widgets if widget._repaint_required}
        self.update_widgets(waiting)
        for widget in waiting:
            widget._repaint_required = False
        return result

    def _render_chops(self, crop: Region, is_rendered_line: Callable[[int], bool]) -> Sequence[Mapping[int, Strip]]:
        """The parts of each line by their start, front to back; None where no drawing was requested."""
        cuts = self.cuts
        chops: list[dict[int, Strip | None]] = [dict.fromkeys(line[:-1]) for line in cuts]
        left, right = crop.column_span
        unfilled = {
            y: {x for x, end in pairwise(cuts[y]) if x < right and end > left}
            for y in crop.line_range
            if is_rendered_line(y)
        }
        for widget, (region, clip) in self.visible_widgets.items():
            if not unfilled:
                break
            seen = region.intersection(clip)
            if not seen.overlaps(crop):
                continue
            begin, end = seen.column_span
            rows = {y: cells for y in seen.line_range if (cells := _within(unfilled.get(y), begin, end))}
            if not rows:
                continue
            top, bottom = min(rows), max(rows)
            shown = Region(seen.x - region.x, top - region.y, seen.width, bottom - top + 1)
            marks = self.marks.get(widget)
            for y, strip in zip(range(top, bottom + 1), widget.render_lines(shown)):
                if y not in rows:
                    continue
                if marks is not None:
                    strip = marked(strip, marks)
                places = [cut for cut in cuts[y] if begin <= cut <= end]
                for place, part in zip(places, strip.divide([cut - begin for cut in places[1:]])):
                    if chops[y][place] is None:
                        chops[y][place] = part
                unfilled[y] -= rows[y]
                if not unfilled[y]:
                    del unfilled[y]
        return cast("Sequence[Mapping[int, Strip]]", chops)


def _within(places: set[int] | None, begin: int, end: int) -> set[int]:
    return {x for x in places if begin <= x < end} if places else set()
