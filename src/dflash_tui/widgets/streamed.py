"""A growing Markdown message: appends to the open block, and plain lines for the settled part of a long block."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal

from markdown_it import MarkdownIt
from markdown_it.token import Token
from textual.containers import Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Markdown

from dflash_tui.text.segments import Op, Segmenter
from dflash_tui.widgets.blank import Stack
from dflash_tui.widgets.items import ITEMS, SLICE, Items, fold_lists
from dflash_tui.widgets.literal import Static
from dflash_tui.widgets.roomy import Fence, Paragraph, Roomy
from dflash_tui.widgets.table import TABLE, Table, fold_tables

PART = 4_000  # characters of one plain part; a new one begins after it
WHOLE_LIMIT = 8_000  # characters; a longer text is rendered in the background: it would stop the app for too long
GROUP = 16  # blocks, or slices of lists and tables, that are mounted between two frames

# HTML is shown as source. Textual drops an HTML block, and with the next append the block before it too.
_BULLETS, _NUMBERS = Markdown.BLOCKS["bullet_list_open"], Markdown.BLOCKS["ordered_list_open"]
_PLAIN: Any = tuple(Markdown.BLOCKS[name] for name in ("h1", "h2", "h3", "h4", "h5", "h6", "hr"))
_EXACT = (Paragraph, Fence, Items, Table, *_PLAIN)
_BULLET = re.compile(r"^[-*+] ", re.MULTILINE)


def make_parser(rows: int | None) -> MarkdownIt:
    """A parser that returns tables and simple lists as one token each, or one for each `rows` rows."""
    made = MarkdownIt("gfm-like", {"html": False})
    made.core.ruler.push("fold_tables", partial(fold_tables, rows=rows))
    made.core.ruler.push("fold_lists", partial(fold_lists, rows=rows))
    return made


# What all messages share: making a parser costs as much as a small append. A list or table that still grows is one
# token, for Textual puts the last block in the place of the one before; a complete one is in slices, drawn when seen.
_PARSER, _WHOLE_PARSER = make_parser(None), make_parser(SLICE)


@dataclass(frozen=True, slots=True)
class Parsed:
    """In the place of a parser, where the tokens of the text are known."""

    tokens: Sequence[Token]

    def parse(self, text: str) -> list[Token]:
        return list(self.tokens) if text else []  # Textual parses an empty text first


class Segment(Stack, Markdown):
    """A part of a message. After a `-cut` the same list goes on after it, so there is no gap.

    Its blocks keep their distance below them only: margins of blocks in two segments would not become one.
    """

    DEFAULT_CSS = """
    Segment > MarkdownHeader, Segment > MarkdownBlockQuote, Segment > MarkdownFence { margin: 0 0 1 0; }
    Segment.-cut > MarkdownBulletList:last-child, Segment.-cut > MarkdownOrderedList:last-child,
    Segment.-cut > Items:last-child { margin: 0; }
    """

    BLOCKS = Markdown.BLOCKS | {
        "paragraph_open": Paragraph,
        "fence": Fence,
        "code_block": Fence,
    }

    def __init__(self, start: int, parser: MarkdownIt | Parsed = _PARSER) -> None:
        super().__init__("", parser_factory=lambda: parser, open_links=False, classes="segment")  # type: ignore[arg-type,return-value]
        self.start = start  # the place of its text in the message
        self._open: Paragraph | Fence | Items | Table | None = None

    @property
    def is_list(self) -> bool:
        """It holds one list and nothing else."""
        return len(self.children) == 1 and isinstance(self.children[0], (_BULLETS, _NUMBERS, Items))

    @property
    def exact(self) -> bool:
        """It holds what its text is parsed to, in blocks that look the same however they grew.

        Textual's lists and quotes do not always. And a block that began as another one, as the item `* **two**` begins
        as a rule, may have ended the list before it.
        """
        parsed = [token.type for token in _PARSER.parse(self.source) if token.level == 0 and token.nesting >= 0]
        return parsed == [child.name for child in self.children if isinstance(child, _EXACT)]

    def unhandled_token(self, token: Token) -> Any:
        """A table, or a list whose items are text."""
        made = {ITEMS: Items, TABLE: Table}.get(token.type)
        return made(self, token) if made is not None else None

    def grow(self, growing: bool) -> None:
        """Let only the last block keep spare rows."""
        last = self.children[-1] if growing and self.children else None
        block = last if isinstance(last, (Paragraph, Fence, Items, Table)) else None
        if block is not self._open:
            if self._open is not None:
                self._open.grow(False)
            if block is not None:
                block.grow(True)
            self._open = block


class PlainLines(Roomy, Static):
    """Source lines as they are: of a list that has moved on, or of a block that is long and still open."""

    def __init__(self, kind: Literal["settled", "tail", "raw"]) -> None:
        super().__init__("", classes=kind)
        self.text = ""

    def add(self, text: str) -> None:
        """More lines."""
        self.text += text
        self.update(Content(self.text.rstrip("\n")))


class Streamed(Stack, Vertical):
    """Feed it clean text; `finish` makes it equal to the message rendered at once.

    It is a row of segments, of which only the last grows. A list that grows long leaves its older items as plain
    lines and numbers on; so does a fence, table or paragraph with its newer ones. Such a block is rendered as it stands
    when it is over.
    """

    def __init__(self) -> None:
        super().__init__(classes="streamed")
        self.text = ""
        self._begin()
        self._raw: PlainLines | None = None  # all of it, where it cannot be rendered

    def _begin(self) -> None:
        self._segmenter = Segmenter()
        self._done = 0  # characters that the segmenter has handed out
        self._segments: list[Segment] = []
        self._settled: list[PlainLines] = []
        self._tail: list[PlainLines] = []
        self._since: int | None = None  # where the segment begins in which the open list was cut
        self._settling = False  # the newest settled lines stand right before the open segment
        self._fresh = True  # the next text begins a segment
        self._rendering: list[asyncio.Task[None]] = []

    async def feed(self, text: str) -> None:
        """Show more of the message."""
        self.text += text
        if self._raw is not None:
            self._raw.add(text)
            return
        for op in self._segmenter.feed(text):
            await self._apply(op)

    async def start_again(self, text: str) -> None:
        """Replace the text by another one, which may grow further."""
        await self._clear()
        self.text = ""
        self._begin()
        if text:
            await self.feed(text)

    async def give_up(self) -> None:
        """Show the text as it is from now on, because it cannot be rendered."""
        await self._clear()
        self._raw = PlainLines("raw")
        await self.mount(self._raw)
        self._raw.add(self.text)

    def on_unmount(self) -> None:
        for task in self._rendering:
            task.cancel()

    async def _clear(self) -> None:
        self.on_unmount()
        await self.remove_children()

    async def finish(self) -> None:
        """The message is complete."""
        if self._raw is not None:
            return
        for op in self._segmenter.finish():
            await self._apply(op)
        await self._close()
        if self._segmenter.dirty:
            await self._render_from(0)
        await self._rendered()

    async def _rendered(self) -> None:
        """Wait for what is rendered in the background."""
        while self._rendering:
            await self._rendering[0]
            del self._rendering[0]

    async def _close(self) -> None:
        """The next text begins a new segment."""
        if self._fresh:  # the last block was rendered from its text when it ended
            return
        for segment in self._segments[-1:]:
            segment.grow(False)
            if not segment.exact:
                await self._render_from(segment.start)
        self._fresh = True

    async def _render_from(self, start: int) -> None:
        """Render what is shown from the segment at `start` on from its text. What is long stays as it is meanwhile."""
        if not start:
            await self._rendered()
        text = self.text[start : self._done]
        over = [segment for segment in self._segments if segment.start >= start]
        old: list[Widget] = [*self._settled, *over, *self._tail] if start else list(self.children)
        self._segments = [segment for segment in self._segments if segment.start < start]
        self._settled, self._tail = [], []
        self._since, self._settling, self._fresh = None, False, True
        if not old:  # the message is being removed
            return
        if len(text) <= WHOLE_LIMIT:
            with self.app.batch_update():
                await self._replace(old, _WHOLE_PARSER.parse(text))
        else:
            self._rendering.append(asyncio.create_task(self._replace_later(old, text)))

    async def _replace_later(self, old: list[Widget], text: str) -> None:
        await self._replace(old, await asyncio.to_thread(lambda: make_parser(SLICE).parse(text)))

    async def _replace(self, old: list[Widget], tokens: Sequence[Token]) -> None:
        """Show these blocks in the place of widgets; they appear together, when all of them are mounted."""
        first = min(old, key=self.children.index)
        new = []
        for group in groups(tokens):
            segment = Segment(0, Parsed(group))
            segment.display = False
            await self.mount(segment, before=first)
            await segment.append("\n")
            new.append(segment)
            await asyncio.sleep(0)
        with self.app.batch_update():
            for segment in new:
                segment.display = True
            await self.remove_children(old)

    async def _add_segment(self, segment: Segment) -> None:
        self._segments.append(segment)
        await self.mount(segment)

    async def _apply(self, op: Op) -> None:
        if op.kind == "plain":
            await self._plain(op.text)
        elif op.kind == "join":
            await self._render_from(self._segments[-1].start if self._since is None else self._since)
        else:
            if op.kind == "cut" and self._segments:
                await self._settle()
            elif op.kind == "next":
                await self._close()
            if self._fresh:
                self._fresh = False
                await self._add_segment(Segment(self._done))
            await self._segments[-1].append(op.text if op.shown is None else op.shown)
            self._segments[-1].grow(True)
        self._done += len(op.text)

    async def _settle(self) -> None:
        """Leave the items of the open list as lines; the list goes on in a segment of its own."""
        segment = self._segments[-1]
        segment.grow(False)
        self._fresh = True
        if self._since is None:
            self._since = segment.start
        if not segment.is_list:  # something stands before the list: what follows does not continue the last such lines
            segment.add_class("-cut")
            self._settling = False
            return
        if not self._settling or len(self._settled[-1].text) > PART:
            self._settled.append(PlainLines("settled"))
            await self.mount(self._settled[-1], before=segment)
            self._settling = True
        self._settled[-1].add(_BULLET.sub("• ", segment.source))
        self._segments.pop()
        await segment.remove()

    async def _plain(self, text: str) -> None:
        if not self._tail or len(self._tail[-1].text) > PART:
            for full in self._tail[-1:]:
                full.grow(False)
            self._tail.append(PlainLines("tail"))
            await self.mount(self._tail[-1])
            self._tail[-1].grow(True)
        self._tail[-1].add(text)


def groups(tokens: Sequence[Token]) -> Iterator[Sequence[Token]]:
    """The tokens of `GROUP` blocks at a time."""
    begins = [place for place, token in enumerate(tokens) if token.level == 0 and token.nesting >= 0]
    cuts = [*begins[::GROUP], len(tokens)]
    return (tokens[start:end] for start, end in pairwise(cuts))
