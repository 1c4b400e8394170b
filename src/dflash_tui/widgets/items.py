"""Markdown lists drawn as lines of one widget.

Textual mounts four widgets for each item of a list, 7 ms each: 1,200 items block the app for 10 s. A list whose items
hold only text and further lists needs none of them. It is built from the parser's tokens, before any widget is created.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from rich.cells import cell_len
from rich.segment import Segment
from textual.content import Content
from textual.css.styles import RulesMap
from textual.geometry import Offset
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style
from textual.visual import RenderOptions, Visual
from textual.widgets import Markdown
from textual.widgets.markdown import MarkdownBlock

from dflash_tui.widgets.roomy import Drawn

ITEMS = "items"  # the kind of token that represents a list, or a slice of one
SLICE = 32  # rows of one slice: what a repaint draws again
_OPEN = frozenset(("bullet_list_open", "ordered_list_open"))
_CLOSE = frozenset(("bullet_list_close", "ordered_list_close"))
_SIMPLE = _OPEN | _CLOSE | {"list_item_open", "list_item_close", "paragraph_open", "paragraph_close", "inline"}
_Block: Any = MarkdownBlock


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A paragraph of a list, to the right of its bullets. `inline` is None for an item without text."""

    prefix: str
    inline: Token | None


def fold_lists(state: StateCore, rows: int | None) -> None:
    """A parser rule: one token for each simple list, or for each `rows` rows of it."""
    tokens, unordered, at = state.tokens, 0, 0
    folded: list[Token] = []
    while at < len(tokens):
        token = tokens[at]
        end = _end_of_list(tokens, at) if token.type in _OPEN else 0
        if end:
            folded += _slices(token, _rows(tokens[at:end], unordered), rows)
            at = end
            continue
        # Textual takes the shape of a bullet from the number of lists of that kind around it.
        unordered += (token.type == "bullet_list_open") - (token.type == "bullet_list_close")
        folded.append(token)
        at += 1
    state.tokens = folded


def _end_of_list(tokens: Sequence[Token], at: int) -> int:
    """The index after the list that begins at `at`; 0 if it holds anything but text and such lists."""
    for place in range(at, len(tokens)):
        token = tokens[place]
        if token.type not in _SIMPLE:
            return 0
        if token.type in _CLOSE and token.level == tokens[at].level:
            return place + 1
    return 0


def _slices(list_open: Token, rows: list[TokenRow], size: int | None) -> Iterable[Token]:
    size = size or len(rows)
    for start in range(0, len(rows), size):
        meta = {"rows": rows[start : start + size], "more": start + size < len(rows)}
        yield Token(ITEMS, "", 0, map=list_open.map, level=list_open.level, block=True, meta=meta)


def _rows(tokens: Sequence[Token], unordered: int) -> list[TokenRow]:
    rows: list[TokenRow] = []
    symbols = _symbols(tokens, unordered)
    around: list[str] = []  # the bullets of the open items
    bullets = ""  # those that have not been drawn yet
    for place, token in enumerate(tokens):
        if token.type == "list_item_open":
            around.append(symbols[place])
            bullets += symbols[place]
        elif token.type == "inline" or (token.type == "list_item_close" and bullets):
            indent = sum(map(cell_len, around)) - cell_len(bullets)
            rows.append(TokenRow(" " * indent + bullets, token if token.type == "inline" else None))
            bullets = ""
        if token.type == "list_item_close":
            around.pop()
    return rows


def _symbols(tokens: Sequence[Token], unordered: int) -> dict[int, str]:
    """What stands before each item, by the place of its token. The numbers of a list end in one column."""
    symbols: dict[int, str] = {}
    lists: list[list[int]] = []
    for place, token in enumerate(tokens):
        if token.type in _OPEN:
            lists.append([])
        elif token.type == "list_item_open":
            lists[-1].append(place)
            if not token.info:
                depth = unordered + sum(1 for items in lists[:-1] if not tokens[items[-1]].info)
                symbols[place] = Markdown.BULLETS[depth % len(Markdown.BULLETS)]
        elif token.type in _CLOSE:
            items = lists.pop()
            if token.type == "ordered_list_close":
                first = int(tokens[items[0]].info)
                width = len(f"{first + len(items) - 1}. ") + 1
                symbols |= {item: f"{number}. ".rjust(width) for number, item in enumerate(items, first)}
    return symbols


@dataclass(frozen=True, slots=True)
class Row:
    """A paragraph and what is left of it; the paragraph's further lines hang under its first. `line`: of the text."""

    bullet: Content
    text: Content
    line: int

    @property
    def indent(self) -> int:
        """In cells."""
        return self.bullet.cell_length

    def height(self, rules: RulesMap, width: int) -> int:
        """In lines, in `width` cells."""
        room = max(width - self.indent, 1)
        if self.text.cell_length <= room and "\n" not in self.text.plain:
            return 1
        return self.text.get_height(rules, room)

    def plain(self) -> str:
        """As text, its lines hanging."""
        return self.bullet.plain + self.text.plain.replace("\n", "\n" + " " * len(self.bullet))


class Rows(Visual):
    """What a list looks like."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = tuple(rows)
        self._height = (-1, 0)  # width, height

    def __str__(self) -> str:
        return "\n".join(row.plain() for row in self.rows)

    def get_optimal_width(self, rules: RulesMap, container_width: int) -> int:
        return max(row.indent + row.text.get_optimal_width(rules, container_width) for row in self.rows)

    def get_height(self, rules: RulesMap, width: int) -> int:
        if self._height[0] != width:
            self._height = width, sum(row.height(rules, width) for row in self.rows)
        return self._height[1]

    def render_strips(self, width: int, height: int | None, style: Style, options: RenderOptions) -> list[Strip]:
        strips: list[Strip] = []
        for row in self.rows:
            if height is not None and len(strips) >= height:
                break
            room = max(width - row.indent, 1)
            bullet = _placed(row.bullet, row.indent, 0, row.line, style, options)[0]
            hanging = Strip([Segment(" " * row.indent, style.rich_style)], row.indent)
            lines = _placed(row.text, room, len(row.bullet), row.line, style, options)
            for left, line in zip([bullet, *[hanging] * len(lines)], lines, strict=False):
                strips.append(Strip.join([left, line]).crop(0, width))
        return strips[:height]


def _placed(content: Content, width: int, x: int, y: int, style: Style, options: RenderOptions) -> list[Strip]:
    """A content's strips, selected and marked by its place in the text of the list: from column `x` of line `y`."""
    selection = options.selection
    local = None if selection is None else _local(selection, x, y, content.plain.count("\n") + 1)
    options = RenderOptions(options.get_style, options.rules, local, options.selection_style, options.post_style)
    strips = []
    for strip in content.render_strips(width, None, style, options):
        at = next((segment.style.meta.get("offset") for segment in strip if segment.style), None)
        strips.append(strip if at is None else strip.apply_offsets(x + at[0], y + at[1]))
    return strips


def _local(selection: Selection, x: int, y: int, lines: int) -> Selection | None:
    """The part of a selection that lies in the lines from `y`, right of column `x`."""
    start, end = selection
    if (start is not None and start.y >= y + lines) or (end is not None and end.y < y):
        return None
    return Selection(
        None if start is None or start.y < y else Offset(max(start.x - x, 0), start.y - y),
        None if end is None or end.y >= y + lines else Offset(max(end.x - x, 0), end.y - y),
    )


class Items(Drawn, _Block):  # type: ignore[misc]
    """A list, or a slice of one; links and the colors of its text are those of any block."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"items--bullet"}
    SCOPED_CSS = False
    DEFAULT_CSS = """
    Items { margin: 0 0 1 0; }
    Items.-more, MarkdownList Items { margin: 0; }
    Items > .items--bullet { color: $text-primary; }
    Items:light > .items--bullet { color: $text-secondary; }
    """

    def __init__(self, markdown: Markdown, token: Token) -> None:
        super().__init__(markdown, token)  # type: ignore[call-arg,arg-type]
        self.set_class(token.meta["more"], "-more")
        rows: list[Row] = []
        line = 0
        for one in token.meta["rows"]:
            text = Content("") if one.inline is None else self._token_to_content(one.inline)
            rows.append(Row(Content.styled(one.prefix, ".items--bullet"), text, line))
            line += text.plain.count("\n") + 1
        self.shown = Rows(rows)
        self.update(self.shown)
