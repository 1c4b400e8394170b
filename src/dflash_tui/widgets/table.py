"""Markdown tables drawn as lines of one widget.

Textual mounts a widget for each cell: 300 rows of two columns block the app for half a second. Like a list, a table is
built from the parser's tokens, before any widget is created, and a long one is several parts. There is no space between
rows; if a cell takes several lines, rules separate the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from rich.cells import cell_len
from textual.content import Content
from textual.css.styles import RulesMap
from textual.widgets import Markdown
from textual.widgets.markdown import MarkdownBlock

from dflash_tui.widgets.items import Part, Parted
from dflash_tui.widgets.literal import ByWidth
from dflash_tui.widgets.marks import Stretch, stretches
from dflash_tui.widgets.mixins import Drawn

TABLE = "table_lines"  # the kind of token that represents a table, or a part of one
PART = 32  # rows of one part: what is parsed and drawn again when a table grows
_BAR = " │ "
_MIN_COLUMN = 4  # minimum number of cells of a column that is made narrower
_Block: Any = MarkdownBlock


def fold_tables(state: StateCore) -> None:
    """A parser rule: one token for each table, and several parts of a long one that stands by itself.

    `continued` of the environment: the text is a part, behind the two lines of the head of its table.
    """
    tokens, at = state.tokens, 0
    folded: list[Token] = []
    while at < len(tokens):
        token = tokens[at]
        if token.type != "table_open":
            folded.append(token)
            at += 1
            continue
        end = next(place for place in range(at, len(tokens)) if tokens[place].type == "table_close")
        folded += _table_parts(
            tokens[at:end], state.src.split("\n"), continued=at == 0 and bool(state.env.get("continued"))
        )
        at = end + 1
    state.tokens = folded


def _table_parts(tokens: Sequence[Token], source: Sequence[str], *, continued: bool) -> Iterator[Token]:
    """A table as parts; the head is in the first. `source`: the lines of the text."""
    rows: list[list[Token]] = []
    sides: list[str] = []
    for token in tokens:
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline":
            rows[-1].append(token)
        elif token.type == "th_open":
            sides.append(str(token.attrs.get("style", "")).rpartition(":")[2])
    table, head, body = tokens[0], rows[0], rows[1:]
    columns = Columns(tuple(max(map(_width, column)) for column in zip(*rows)), tuple(sides))
    begin, end = table.map or (0, 0)
    size = PART if table.level == 0 else len(rows)
    for start in range(0, max(len(body), int(not continued)), size):
        first = start == 0 and not continued
        more = start + size < len(body)
        meta = {
            "rows": [*[head] * first, *body[start : start + size]],
            "columns": columns,
            "head": "" if first else "\n".join([*source[begin : begin + 2], ""]),
            "part": Part(more=more),
        }
        # Two lines of the text are the head and what is below it.
        lines = [begin if first else begin + 2 + start, begin + 2 + start + size if more else end]
        yield Token(TABLE, "", 0, map=lines, level=table.level, block=True, meta=meta)


def _width(inline: Token) -> int:
    """About as many cells as the text takes; where it takes more, it is wrapped."""
    return max(sum(cell_len(child.content) for child in inline.children or ()), 1)


@dataclass(frozen=True, slots=True)
class Columns:
    """Widths in cells that hold each column's longest text, and to which side text goes: "", left, center or right."""

    widths: tuple[int, ...]
    sides: tuple[str, ...]

    @property
    def whole(self) -> int:
        """Cells of a table whose columns have their widths."""
        return sum(self.widths) + len(_BAR) * (len(self.widths) - 1)

    def within(self, width: int) -> tuple[int, ...]:
        """The column widths in a table of `width` cells: the widest columns shrink first."""
        available = max(width - len(_BAR) * (len(self.widths) - 1), len(self.widths))
        widest = max(self.widths)
        while widest > 1 and sum(min(one, widest) for one in self.widths) > available:
            widest -= 1
        if widest >= min(_MIN_COLUMN, max(self.widths)):
            return tuple(min(one, widest) for one in self.widths)
        return tuple(max(available // len(self.widths), 1) for _ in self.widths)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A line of a cell as it is drawn, the blanks before its text, and the characters of that."""

    drawn: Content
    left: int = 0
    length: int = 0


class Grid(ByWidth):
    """What a table, or a part of one, looks like."""

    def __init__(self, rows: Sequence[Sequence[Content]], columns: Columns, *, head: bool, more: bool) -> None:
        super().__init__(self._joined)
        self.rows, self.columns, self._head, self._more = rows, columns, head, more
        self._cells: list[tuple[str, list[Stretch]]] = []  # texts, and the stretches of these lines that have them

    def __str__(self) -> str:
        return (self._last[1] if self._last[0] >= 0 else self.at(self.columns.whole)).plain

    def _joined(self, width: int) -> Content:
        self._cells = []
        return Content("\n").join(self._drawn(self.columns.within(width)))

    def places(self, searched: str) -> list[tuple[Stretch, ...]]:
        lines = str(self).split("\n")
        found = [
            parts
            for text, places in self._cells
            for one in stretches(text, searched)
            if (parts := tuple(_parts(one, text, places, lines)))
        ]
        return sorted(found, key=lambda parts: (parts[0].line, parts[0].start))

    def _drawn(self, widths: tuple[int, ...]) -> list[Content]:
        bar = Content.styled(_BAR, ".table--lines")
        rule = Content.styled("─┼─".join("─" * width for width in widths), ".table--lines")
        parted = widths != self.columns.widths  # the same in all parts
        drawn: list[Content] = []
        for number, row in enumerate(self.rows):
            cells = [_cell(*one) for one in zip(row, widths, self.columns.sides)]
            height = max(map(len, cells))
            places_by_cell: list[list[Stretch]] = [[] for _ in cells]
            for line in range(height):
                parts = [
                    cell[line] if line < len(cell) else _Piece(Content(" " * width))
                    for cell, width in zip(cells, widths)
                ]
                at = 0
                for part, places in zip(parts, places_by_cell):
                    places.append(Stretch(len(drawn), at + part.left, at + part.left + part.length))
                    at += len(part.drawn.plain) + len(_BAR)
                drawn.append(bar.join(part.drawn for part in parts))
            self._cells += [(text.plain, places) for text, places in zip(row, places_by_cell)]
            if (number == 0 and self._head) or (parted and (self._more or number < len(self.rows) - 1)):
                drawn.append(rule)
        return drawn

    def get_optimal_width(self, rules: RulesMap, container_width: int) -> int:
        return min(self.columns.whole, container_width)

    def get_height(self, rules: RulesMap, width: int) -> int:
        return self.at(width).plain.count("\n") + 1  # a row wider than that is cut


def _cell(text: Content, width: int, side: str) -> list[_Piece]:
    lines = [text] if text.cell_length <= width else [line.rstrip() for line in text.wrap(width)]
    placed = []
    for line in lines:
        free = max(width - line.cell_length, 0)
        left = {"right": free, "center": free // 2}.get(side, 0)
        placed.append(_Piece(line.pad_left(left).pad_right(free - left), left, len(line.plain)))
    return placed


def _parts(found: Stretch, text: str, places: Sequence[Stretch], lines: Sequence[str]) -> Iterator[Stretch]:
    """A stretch of a cell's `text` as stretches of the lines that have it at `places`, without the blanks that it was
    broken at."""
    at = 0
    for place in places:
        piece = lines[place.line][place.start : place.end]
        at = max(text.find(piece, at), at)
        start, end = max(found.start, at), min(found.end, at + len(piece))
        if start < end:
            yield Stretch(place.line, place.start + start - at, place.start + end - at)
        at += len(piece)


class Table(Parted, Drawn, _Block):  # type: ignore[misc]
    """A table, or a part of one; links and the colors of its text are those of any block.

    `head`: the two lines of the text that its table begins with, if these are not in this part.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {"table--head", "table--lines"}
    SCOPED_CSS = False
    DEFAULT_CSS = """
    Table { margin: 0 0 1 0; text-wrap: nowrap; }
    Table > .table--head { color: $primary; text-style: bold; }
    Table > .table--lines { color: $foreground 25%; }
    """

    def __init__(self, markdown: Markdown, token: Token) -> None:
        super().__init__(markdown, token)
        meta = token.meta
        self.head: str = meta["head"]
        self._take(meta["part"])
        rows = [[self._token_to_content(cell) for cell in row] for row in meta["rows"]]
        if not self.head:
            rows[0] = [cell.stylize_before(".table--head") for cell in rows[0]]
        self.shown: Grid = Grid(rows, meta["columns"], head=not self.head, more=self.part.more)
        self.update(self.shown)

    def _copy_context(self, block: MarkdownBlock) -> None:
        super()._copy_context(block)
        if isinstance(block, Table):
            self.head = block.head

    def widen(self, widths: tuple[int, ...]) -> None:
        if widths != self.shown.columns.widths:
            columns = replace(self.shown.columns, widths=widths)
            self.shown = Grid(self.shown.rows, columns, head=not self.head, more=self.part.more)
            self.update(self.shown)

    def places(self, searched: str) -> list[tuple[Stretch, ...]]:
        return self.shown.places(searched)
