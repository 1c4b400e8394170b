"""Widgets that show text literally: none of it is markup, and no control code in it reaches the terminal.

File names, titles, models' words and errors all pass through these, so every screen takes its widgets from here;
Textual's own read markup in whatever text they are given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from rich.segment import Segment
from rich.text import Text
from textual import widgets
from textual.color import Color
from textual.content import Content
from textual.coordinate import Coordinate
from textual.css.styles import RulesMap
from textual.filter import LineFilter
from textual.message import Message
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style
from textual.visual import RenderOptions, Visual, VisualType
from textual.widget import Widget
from textual.widgets._option_list import OptionListContent
from textual.widgets.option_list import Option

from dflash_core.clean import clean, marked, stripped


def literal(content: VisualType) -> VisualType:
    """A text as Content without markup; each control character is replaced by a mark."""
    if isinstance(content, str):
        return Content(clean(content))
    if isinstance(content, Content):
        shown = marked(content.plain)
        return content if shown == content.plain else Content(shown, list(content.spans))
    return content


class ByWidth(Visual):
    """A text whose lines depend on the width that it is drawn in: `draw` makes them for a width in cells."""

    def __init__(self, draw: Callable[[int], Content]) -> None:
        self._draw, self._last = draw, (-1, Content(""))

    def __str__(self) -> str:
        return self._last[1].plain

    def at(self, width: int) -> Content:
        """All of it in `width` cells."""
        if self._last[0] != width:
            drawn = literal(self._draw(width))
            assert isinstance(drawn, Content)
            self._last = width, drawn
        return self._last[1]

    def get_optimal_width(self, rules: RulesMap, container_width: int) -> int:
        return self.at(container_width).get_optimal_width(rules, container_width)

    def get_height(self, rules: RulesMap, width: int) -> int:
        return self.at(width).get_height(rules, width)

    def render_strips(self, width: int, height: int | None, style: Style, options: RenderOptions) -> list[Strip]:
        return self.at(width).render_strips(width, height, style, options)


class Static(widgets.Static):
    """Textual's, with text as it is."""

    def __init__(
        self, content: VisualType = "", *, expand: bool = False, id: str | None = None, classes: str | None = None
    ) -> None:
        super().__init__(literal(content), expand=expand, markup=False, id=id, classes=classes)

    def update(self, content: VisualType = "", *, layout: bool = True) -> None:
        """Show another text. A layout of the whole screen, which Textual requests each time, follows only where the
        widget needs another size for it."""
        super().update(literal(content), layout=False)
        if not layout:
            return
        if not self._is_mounted:
            self.refresh(layout=True)
            self._forget_sizes()
        elif self._keeps_size():
            self._layout_updates += 1
            self._forget_sizes()  # in another width, or when it is shown, it may need another height
        else:
            self.refresh(layout=True, repaint=False)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        shown = self.visual
        if isinstance(shown, ByWidth):
            return selection.extract(shown.at(self.content_size.width).plain), "\n"
        return super().get_selection(selection)

    def _keeps_size(self) -> bool:
        """Whether a layout would place it as it stands now, or would not place it at all."""
        places = [one for one in self.ancestors_with_self if isinstance(one, Widget)]
        if not all(one.display for one in places):
            return True
        if any(one.styles.is_auto_width for one in places):
            return False
        if not self.styles.is_auto_height:
            return True
        size = self.outer_size - self.styles.gutter.totals
        return bool(size) and self.get_content_height(size, size, size.width) == size.height

    def _forget_sizes(self) -> None:
        """Clear the sizes cached for an earlier text. Textual does this when a widget is idle. A widget that gets its
        text while it is being mounted may be placed before that."""
        self._layout_cache.clear()
        self.clear_cached_dimensions()
        for ancestor in self.ancestors:
            if not isinstance(ancestor, Widget):
                break
            ancestor._clear_arrangement_cache()
            ancestor._layout_updates += 1
            if not ancestor.styles.auto_dimensions:
                break


PAGING = ("page_up", "page_down")


def can_page(options: widgets.OptionList) -> bool:
    """Whether there is a line to page to. Textual looks for one even if the terminal is too small to show any."""
    return bool(options.scrollable_content_region)


class Caption(Static):
    """Words of the app beside a text of the conversation. A selection of that text leaves them out."""

    ALLOW_SELECT = False


class OptionList(widgets.OptionList):
    """Textual's, with text as it is, for terminals however small."""

    def __init__(self, *content: OptionListContent, id: str | None = None, compact: bool = False) -> None:
        super().__init__(*content, id=id, markup=False, compact=compact)

    @property
    def row(self) -> str:
        """The id of the row under the cursor; "" where there is none."""
        chosen = self.highlighted_option
        return (chosen.id or "") if chosen is not None else ""

    def show_rows(self, rows: Sequence[Option], first: str = "") -> None:
        """Replace the rows; the cursor stays on its row if that still exists, else it goes to `first`, or to the first
        that can be chosen."""
        chosen, place = self.row or first, self.scroll_offset
        self.clear_options()
        self.add_options(rows)
        ids = [row.id for row in rows]
        at = ids.index(chosen) if chosen in ids else next((n for n, row in enumerate(rows) if not row.disabled), None)
        self.highlighted = at
        self.scroll_to(*place, animate=False)
        if at is not None:
            self.scroll_to_highlight()

    def add_options(self, new_options: Iterable[OptionListContent]) -> OptionList:
        super().add_options([_option(one) for one in new_options])
        return self

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return super().check_action(action, parameters) and (action not in PAGING or can_page(self))


def _option(one: OptionListContent) -> OptionListContent:
    if one is None:
        return None
    if isinstance(one, Option):
        return Option(literal(one.prompt), id=one.id, disabled=one.disabled)
    return literal(one)


class DataTable(widgets.DataTable[Text]):
    """Textual's, with text as it is."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, cursor_type="row")
        self._shown: tuple[object, ...] = ()  # headings, keys of the rows, and styles of cells by both
        self._texts: Mapping[str, Sequence[str]] = {}

    @property
    def cursor_key(self) -> str | None:
        return self.coordinate_to_cell_key(self.cursor_coordinate).row_key.value if self.row_count else None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Without a row Enter has nothing to choose, so the footer does not offer it."""
        return super().check_action(action, parameters) and (action != "select_cursor" or self.row_count > 0)

    def fill(
        self,
        headings: Iterable[str],
        rows: Mapping[str, Sequence[str]],
        cursor: str | None = None,
        colors: Mapping[str, Mapping[int, str]] = MappingProxyType({}),
    ) -> None:
        """Show these rows, by key. The cursor goes to the row `cursor`; without one it stays on its row, if that is
        still there. `colors`: of some rows, names of the theme's colors by the places of the cells that have one."""
        of_theme = self.app.theme_variables
        styles = {key: {at: of_theme[name] for at, name in names.items()} for key, names in colors.items()}
        shown, before, chosen = ([*headings], [*rows], styles), self._texts, cursor or self.cursor_key
        same, self._shown, self._texts = shown == self._shown and self.row_count == len(rows), shown, rows
        if not same:
            self.clear(columns=True)
            self.add_columns(*(Text(clean(heading)) for heading in headings))
        for place, (key, cells) in enumerate(rows.items()):
            row = [Text(clean(cell), styles.get(key, {}).get(at, "")) for at, cell in enumerate(cells)]
            if not same:
                self.add_row(*row, key=key)
                # Textual measures later, when the table is idle; until then it would be as narrow as its headings.
                for column, text in zip(self.ordered_columns, row):
                    column.content_width = max(column.content_width, text.cell_len)
            for at, text in enumerate(row if same else ()):
                if cells[at] != before[key][at]:
                    self.update_cell_at(Coordinate(place, at), text, update_width=True)
        if chosen is not None and chosen in rows and chosen != self.cursor_key:
            self.move_cursor(row=[*rows].index(chosen))


def row_key(event: widgets.DataTable.RowSelected | widgets.DataTable.RowHighlighted) -> str | None:
    """The key of the row of an event; None where the table has no row, for which Textual posts events too."""
    value: str | None = getattr(event.row_key, "value", None)
    return value


@dataclass
class Copy(Message):
    """Copy `text`, and show where it went; `what` names it."""

    text: str
    what: str


class ControlCodeFilter(LineFilter):
    """A last filter over every rendered line: it keeps control characters from the terminal.

    The layout is done by then, so they are removed and not marked; `literal` marks them on input.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            segment if (text := stripped(segment.text)) == segment.text else segment._replace(text=text)
            for segment in segments
        ]


def name_border(widget: Widget, name: str) -> None:
    widget.border_title = Content(name) if name else None
