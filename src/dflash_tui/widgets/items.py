"""Markdown lists drawn as lines of one widget.

Textual mounts four widgets for each item of a list, 7 ms each: 1,200 items block the app for 10 s. A list whose items
hold only text and further lists needs none of them. The lines are built from the parser's tokens,
before any widget is created.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, repeat, takewhile
from typing import TYPE_CHECKING, Any, ClassVar

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

from dflash_tui.widgets.mixins import Drawn

ITEMS = "items"  # the kind of token that represents a list, or a part of one
PART = 32  # items of one part: what is parsed and drawn again when a list grows
_OPEN = frozenset(("bullet_list_open", "ordered_list_open"))
_CLOSE = frozenset(("bullet_list_close", "ordered_list_close"))
_SIMPLE = _OPEN | _CLOSE | {"list_item_open", "list_item_close", "paragraph_open", "paragraph_close", "inline"}
_Block: Any = MarkdownBlock
_Bullets: Any = Markdown.BLOCKS["bullet_list_open"]
_Numbers: Any = Markdown.BLOCKS["ordered_list_open"]


@dataclass(frozen=True, slots=True)
class Part:
    """Which part of a list or table a block is: the number of its first item, the cells of its widest number, and
    whether the list or table continues in the next block."""

    number: int | None = None
    width: int = 0
    more: bool = False


def fold_lists(state: StateCore) -> None:
    """A parser rule: one token for each list of text, and several parts of a long list that stands by itself.

    Textual parses again from the line at which the last token begins. So of a list that grows, only the last part is
    parsed and drawn again. `number` of the environment: what the first item has, where the text begins with a part.
    """
    tokens = state.tokens
    if tokens and tokens[0].type == "ordered_list_open" and state.env.get("number") is not None:
        tokens[1].info = str(state.env["number"])
    state.tokens = _folded(tokens, 0)


def _folded(tokens: Sequence[Token], unordered: int) -> list[Token]:
    folded: list[Token] = []
    at = 0
    while at < len(tokens):
        token = tokens[at]
        end = _end_of_list(tokens, at) if token.type in _OPEN else 0
        if end and token.level == 0:
            folded += _parts(tokens[at:end])
            at = end
        elif end and _simple(tokens[at:end]):
            folded.append(_items(tokens[at:end], unordered, Part()))
            at = end
        else:
            # Textual takes the shape of a bullet from the number of lists of that kind around it.
            unordered += (token.type == "bullet_list_open") - (token.type == "bullet_list_close")
            folded.append(token)
            at += 1
    return folded


def _end_of_list(tokens: Sequence[Token], at: int) -> int:
    ends = (place for place in range(at, len(tokens)) if tokens[place].type in _CLOSE)
    return next(place for place in ends if tokens[place].level == tokens[at].level) + 1


def _simple(tokens: Iterable[Token]) -> bool:
    """Whether these hold nothing but text and lists of text."""
    return all(token.type in _SIMPLE for token in tokens)


def _parts(tokens: Sequence[Token]) -> Iterator[Token]:
    """A list as parts: up to `PART` items of text are lines of one block, any other item is a list of Textual."""
    begin, *_, close = tokens
    begins = [place for place, token in enumerate(tokens) if token.type == "list_item_open" and token.level == 1]
    ends = [*begins[1:], len(tokens) - 1]
    spans = [tokens[place].map or [0, 0] for place in begins]  # lines of the text
    first = int(tokens[begins[0]].info) if begin.type == "ordered_list_open" else None
    simple = [_simple(tokens[start:end]) for start, end in zip(begins, ends)]
    at = 0
    while at < len(begins):
        size = len(list(takewhile(bool, simple[at : at + PART]))) or 1
        last = at + size - 1
        number = None if first is None else first + at
        width = 0 if number is None else len(f"{number + size - 1}. ") + 1
        part = Part(number, width, more=last + 1 < len(begins))
        opened = replace(begin, map=[spans[at][0], spans[last][1]], meta={"part": part})
        items = [opened, *tokens[begins[at] : ends[last]], close]
        if number is not None:
            items[1].info = str(number)
        unordered = number is None
        yield from [_items(items, 0, part)] if simple[at] else [opened, *_folded(items[1:-1], int(unordered)), close]
        at += size


def _items(tokens: Sequence[Token], unordered: int, part: Part) -> Token:
    begin = tokens[0]
    meta = {"rows": _rows(tokens, unordered), "part": part}
    return Token(ITEMS, "", 0, map=begin.map, level=begin.level, block=True, meta=meta)


def _rows(tokens: Sequence[Token], unordered: int) -> list[tuple[str, Token | None]]:
    """The paragraphs of a list, each with what is left of it; None for an item without text."""
    rows: list[tuple[str, Token | None]] = []
    lists: list[Iterator[str]] = []  # of each open list, what stands before its next items
    around: list[str] = []  # the bullets of the open items
    bullets = ""  # those that have not been drawn yet
    for place, token in enumerate(tokens):
        if token.type in _OPEN:
            lists.append(_symbols(tokens[place : _end_of_list(tokens, place)], unordered))
            unordered += token.type == "bullet_list_open"
        elif token.type in _CLOSE:
            lists.pop()
            unordered -= token.type == "bullet_list_close"
        elif token.type == "list_item_open":
            around.append(next(lists[-1]))
            bullets += around[-1]
        elif token.type == "inline" or (token.type == "list_item_close" and bullets):
            indent = sum(map(cell_len, around)) - cell_len(bullets)
            rows.append((" " * indent + bullets, token if token.type == "inline" else None))
            bullets = ""
        if token.type == "list_item_close":
            around.pop()
    return rows


def _symbols(tokens: Sequence[Token], unordered: int) -> Iterator[str]:
    """What stands before each item of a list. The numbers of a list end in one column."""
    items = [token for token in tokens if token.type == "list_item_open" and token.level == tokens[0].level + 1]
    if tokens[0].type == "bullet_list_open":
        yield from repeat(Markdown.BULLETS[unordered % len(Markdown.BULLETS)])
    first = int(items[0].info)
    width = len(f"{first + len(items) - 1}. ") + 1
    yield from (f"{number}. ".rjust(width) for number in count(first))


@dataclass(frozen=True, slots=True)
class Row:
    """A paragraph and what is left of it; the paragraph's further lines hang under its first. `line`: of the text."""

    bullet: Content
    text: Content
    line: int

    @property
    def indent(self) -> int:
        return self.bullet.cell_length

    def height(self, rules: RulesMap, width: int) -> int:
        text_width = max(width - self.indent, 1)
        if self.text.cell_length <= text_width and "\n" not in self.text.plain:
            return 1
        return self.text.get_height(rules, text_width)

    def plain(self) -> str:
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
            text_width = max(width - row.indent, 1)
            bullet = _placed(row.bullet, row.indent, 0, row.line, style, options)[0]
            hanging = Strip([Segment(" " * row.indent, style.rich_style)], row.indent)
            lines = _placed(row.text, text_width, len(row.bullet), row.line, style, options)
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


# Textual follows only one base class to find a widget's CSS, so a mixin must not be a widget.
if TYPE_CHECKING:
    _Mixed = MarkdownBlock
else:
    _Mixed = object


class Parted(_Mixed):
    """A mixin for a block that is a list or table, or a part of one."""

    part = Part()

    def _take(self, part: Part) -> None:
        """Where it continues, no row stays free below this part."""
        self.part = part
        self.set_class(part.more, "-more")

    def _copy_context(self, block: MarkdownBlock) -> None:
        super()._copy_context(block)
        if isinstance(block, type(self)):
            self._take(block.part)


class ListPart(Parted):
    """A mixin for a list, or a part of one."""

    def __init__(self, markdown: Markdown, token: Token) -> None:
        super().__init__(markdown, token)
        self._take(token.meta.get("part", Part()))

    def align(self, width: int) -> None:
        """Move to the right, to stand below or above a part whose numbers take `width` cells."""
        pad = max(width - self.part.width, 0)
        if self.styles.padding.left != pad:
            self.styles.padding = (0, 0, 0, pad)


class BulletList(ListPart, _Bullets):  # type: ignore[misc]
    """A list of Textual, for items that are more than text."""


class OrderedList(ListPart, _Numbers):  # type: ignore[misc]
    """The same with numbers."""


class Items(ListPart, Drawn, _Block):  # type: ignore[misc]
    """A list of text, or a part of one; links and the colors of its text are those of any block."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"items--bullet"}
    SCOPED_CSS = False
    DEFAULT_CSS = """
    Items { margin: 0 0 1 0; }
    MarkdownList Items { margin: 0; }
    Items > .items--bullet { color: $text-primary; }
    Items:light > .items--bullet { color: $text-secondary; }
    """

    def __init__(self, markdown: Markdown, token: Token) -> None:
        super().__init__(markdown, token)
        rows: list[Row] = []
        line = 0
        for prefix, inline in token.meta["rows"]:
            text = Content("") if inline is None else self._token_to_content(inline)
            rows.append(Row(Content.styled(prefix, ".items--bullet"), text, line))
            line += text.plain.count("\n") + 1
        self.shown = Rows(rows)
        self.update(self.shown)
