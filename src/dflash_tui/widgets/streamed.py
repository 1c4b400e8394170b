"""A Markdown message that grows: appends, cuts where the open block gets long, a plain tail for very long blocks."""

from __future__ import annotations

from markdown_it import MarkdownIt
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Markdown, Static

from dflash_tui.segments import Segmenter

TAIL_PART = 4_000  # characters of one plain part; a new one begins after it
WHOLE_LIMIT = 48_000  # longer messages keep their cuts: rendering them whole would stop the app for too long

# HTML is shown as the text that it is. Textual drops an HTML block, and with the next append the block before it too.
_PARSER = MarkdownIt("gfm-like", {"html": False})


def parser() -> MarkdownIt:
    """The parser that all messages share: making one costs as much as a small append."""
    return _PARSER


class Segment(Markdown):
    """A part of a message. After a `-cut` the same list goes on in the next one, so there is no gap."""

    DEFAULT_CSS = """
    Segment.-cut > MarkdownBulletList:last-child, Segment.-cut > MarkdownOrderedList:last-child { margin: 0; }
    """

    def __init__(self) -> None:
        super().__init__("", parser_factory=parser, open_links=False, classes="segment")


class Streamed(Vertical):
    """Feed it clean text; `finish` makes it equal to the message rendered at once."""

    def __init__(self) -> None:
        super().__init__(classes="streamed")
        self.text = ""
        self._segmenter = Segmenter()
        self._segments: list[Segment] = []
        self._tail: list[Static] = []
        self._tail_text = ""
        self._part_text = ""
        self._fresh = True  # the next text begins a segment

    async def feed(self, text: str) -> None:
        """Show more of the message."""
        self.text += text
        for op in self._segmenter.feed(text):
            await self._apply(op.kind, op.text)

    async def finish(self) -> None:
        """The message is complete."""
        for op in self._segmenter.finish():
            await self._apply(op.kind, op.text)
        if self._segmenter.dirty and len(self.text) <= WHOLE_LIMIT:
            first, *rest = self._segments
            with self.app.batch_update():
                for segment in rest:
                    await segment.remove()
                first.remove_class("-cut")
                await first.update(self.text)
            self._segments = [first]

    async def _apply(self, kind: str, text: str) -> None:
        if kind == "plain":
            await self._plain(text)
        elif kind == "join":
            await self._join()
        else:
            if kind == "cut" and self._segments:
                self._segments[-1].add_class("-cut")
            if kind == "cut" or self._fresh:
                self._fresh = False
                self._segments.append(Segment())
                await self.mount(self._segments[-1])
            await self._segments[-1].append(text)

    async def _plain(self, text: str) -> None:
        self._tail_text += text
        if not self._tail or len(self._part_text) > TAIL_PART:
            self._part_text = ""
            self._tail.append(Static("", classes="tail", markup=False))
            await self.mount(self._tail[-1])
        self._part_text += text
        self._tail[-1].update(Content(self._part_text.rstrip("\n")))

    async def _join(self) -> None:
        segment = self._segments[-1]
        with self.app.batch_update():
            for part in self._tail:
                await part.remove()
            await segment.update(segment.source + self._tail_text)
        self._tail, self._tail_text, self._part_text = [], "", ""
        # Markdown.append after Markdown.update would take the block's last line for a new block.
        self._fresh = True
