"""The text of an answer: Textual's Markdown, whose blocks cost little while they grow.

With each append, Textual parses from the last block on, mounts a widget for each cell of a table and four for each
item of a list, and highlights all of a code block again. Here a table and a list of text are lines of one widget, a
long list is several blocks, and only the last lines of code are highlighted again. docs/notes/app.md has the figures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token
from textual.app import ComposeResult
from textual.content import Content
from textual.events import Click
from textual.widgets import Label, Markdown
from textual.widgets.markdown import MarkdownBlock, MarkdownFence

from dflash_core.clean import one_line
from dflash_tui.application.amounts import counted
from dflash_tui.widgets.items import ITEMS, BulletList, Items, ListPart, OrderedList, fold_lists
from dflash_tui.widgets.literal import Caption, Copy, Static
from dflash_tui.widgets.maths import add_maths
from dflash_tui.widgets.mixins import Growing, Stack
from dflash_tui.widgets.table import TABLE, Table, fold_tables

_Paragraph: Any = Markdown.BLOCKS["paragraph_open"]
PART = 50  # lines of code in one widget: what is highlighted again when a code block grows


class Paragraph(Growing, _Paragraph):  # type: ignore[misc]
    """A paragraph."""


class Code(Growing, Label):
    """Lines of a fence."""


class Fence(MarkdownFence):
    """A code block in parts of `PART` lines. The frame names the language; a click on it copies the code."""

    growing = False

    @classmethod
    def highlight(cls, code: str, language: str, ansi: bool = False, dark: bool = False) -> Content:
        """Textual highlights all of it whenever it has grown; the parts do that here."""
        return Content(code)

    def _highlighted(self, code: str) -> Content:
        # Where no language is named, yet or at all, it is text: Textual loads every lexer there is to guess one.
        language, theme = self.lexer or "text", self.app.current_theme
        shown = super().highlight(code, language, self.app.native_ansi_color, theme.dark)
        return shown + "\n" if code.endswith("\n") else shown  # Textual drops an empty last line

    def set_content(self, content: Content) -> None:
        # Called when the theme has changed.
        if self.query(Code):
            self._show_whole()

    def on_click(self, event: Click) -> None:
        if event.button == 1 and event.screen_y == self.region.y:  # on the head; on the text one selects
            event.stop()
            self.post_message(Copy(self.code, f"the code, {self.lines}"))

    def compose(self) -> ComposeResult:
        yield Caption(self._head, classes="fence-head")
        for part in self._whole():
            yield Code(part, expand=True)

    @property
    def _head(self) -> Content:
        language = one_line(self.lexer.split()[0] if self.lexer.strip() else "code")[:20]
        return Content.assemble((language, "bold"), "  click copies")

    @property
    def lines(self) -> str:
        """How many, in words."""
        return counted(self.code.count("\n") + 1, "line")

    @property
    def _parts(self) -> list[str]:
        lines = self.code.split("\n")
        return ["\n".join(lines[start : start + PART]) for start in range(0, len(lines), PART)]

    async def _update_from_block(self, block: MarkdownBlock) -> None:
        if not isinstance(block, Fence):
            await super()._update_from_block(block)
            return
        named, last = self.lexer, len(self._parts) - 1
        self._copy_context(block)
        if self.lexer != named:  # the line that opens the fence came in two parts
            self.query_one(".fence-head", Caption).update(self._head)
            last = 0
        shown, parts = list(self.query(Code)), self._parts
        for code in shown[len(parts) :]:  # what looked like more code was the line that closes the fence
            await code.remove()
        for place in range(last, len(parts)):
            if place < len(shown):
                shown[place].update(self._highlighted(parts[place]))
            else:
                await self.mount(Code(self._highlighted(parts[place]), expand=True))
        self.grow(self.growing)

    def grow(self, growing: bool) -> None:
        """Start or stop keeping spare rows. A complete block is highlighted as a whole: a text may go on over parts."""
        over = self.growing and not growing
        self.growing = growing
        *full, last = self.query(Code)
        for code in full:
            code.grow(False)
        last.grow(growing)
        if over and full:
            self._show_whole()

    def _show_whole(self) -> None:
        for code, part in zip(self.query(Code), self._whole()):
            code.update(part)

    def _whole(self) -> Iterator[Content]:
        """The parts, highlighted together."""
        lines = self._highlighted(self.code).split("\n", allow_blank=True)
        return (Content("\n").join(lines[start : start + PART]) for start in range(0, len(lines), PART))


class Parser:
    """As Textual uses a parser. The next text may begin with a part of a list or table: `number` is that of its first
    item, `head` the lines that its table begins with."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.head = ""

    def parse(self, text: str) -> list[Token]:
        number, head, self.number, self.head = self.number, self.head, None, ""
        tokens = _PARSER.parse(head + text, {"number": number, "continued": bool(head)})
        for token in tokens if head else ():
            token.map = token.map and [line - head.count("\n") for line in token.map]
        return tokens


# HTML is shown as source. Textual drops an HTML block, and with the next append the block before it too.
_PARSER = MarkdownIt("gfm-like", {"html": False})  # all messages share it: making one costs as much as a small append
add_maths(_PARSER)
_PARSER.core.ruler.push("fold_tables", fold_tables)
_PARSER.core.ruler.push("fold_lists", fold_lists)


class Streamed(Stack, Markdown):
    """Feed it clean text; `finish` makes it equal to the message rendered at once.

    Blocks keep their distance below them only.
    """

    DEFAULT_CSS = """
    Streamed > MarkdownHeader, Streamed > MarkdownBlockQuote, Streamed > MarkdownFence { margin: 0 0 1 0; }
    Streamed > .-more { margin: 0; }
    """
    BLOCKS = Markdown.BLOCKS | {
        "paragraph_open": Paragraph,
        "fence": Fence,
        "code_block": Fence,
        "bullet_list_open": BulletList,
        "ordered_list_open": OrderedList,
    }

    def __init__(self) -> None:
        self._parser = Parser()
        super().__init__("", parser_factory=lambda: self._parser, open_links=False, classes="streamed")  # type: ignore[arg-type,return-value]
        self.text = ""
        self._growing: Paragraph | Fence | Items | Table | None = None
        self._raw: Static | None = None  # all of it, where it cannot be rendered

    def unhandled_token(self, token: Token) -> Any:
        made = {ITEMS: Items, TABLE: Table}.get(token.type)
        return made(self, token) if made is not None else None

    async def feed(self, text: str) -> None:
        self.text += text
        if self._raw is not None:
            self._raw.update(self.text)
            return
        last = self.children[-1] if self.children else None
        self._parser.number = last.part.number if isinstance(last, ListPart) else None
        self._parser.head = last.head if isinstance(last, Table) else ""
        await self.append(text)
        self._align()
        self._grow(self.children[-1] if self.children else None)

    async def finish(self) -> None:
        """The message is complete. Where a link was defined later, or a block turned out to be another one, as the item
        `* **two**` begins as a rule, all of it is rendered again."""
        if self._raw is not None:
            return
        self._grow(None)
        found: dict[str, Any] = {}
        blocks = await asyncio.to_thread(_PARSER.parse, self.text, found)
        there = [(block.name, getattr(block, "part", None)) for block in self.children]
        right = [(block.type, block.meta.get("part")) for block in blocks if block.level == 0 and block.nesting >= 0]
        if there and ("references" in found or there != right):
            await self.update(self.text)
            self._align()

    async def start_again(self, text: str) -> None:
        """Replace the text by another one, which may grow further."""
        self.text, self._growing = "", None
        await self.update("")
        await self.feed(text)

    async def give_up(self) -> None:
        """Show the text as it is from now on, because it cannot be rendered."""
        await self.remove_children()
        self._raw = Static(self.text)
        await self.mount(self._raw)

    def _grow(self, block: Any) -> None:
        """Let only this block keep spare rows."""
        block = block if isinstance(block, (Paragraph, Fence, Items, Table)) else None
        if block is not self._growing:
            if self._growing is not None and self._growing.is_attached:
                self._growing.grow(False)
            if block is not None:
                block.grow(True)
            self._growing = block

    def _align(self) -> None:
        """Let the numbers of a list end in one column, and give the parts of a table the same columns."""
        width = 0
        table: list[Table] = []
        for block in reversed(self.children):
            if isinstance(block, ListPart):
                width = max(width, block.part.width) if block.part.more else block.part.width
                block.align(width)
            elif isinstance(block, Table):
                table = [*table, block] if block.part.more else [block]
                if not block.head:  # the first part
                    widths = tuple(map(max, zip(*(part.shown.columns.widths for part in table))))
                    for part in table:
                        part.widen(widths)
