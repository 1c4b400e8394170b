"""Cutting streamed Markdown: nothing is lost, and the finished message equals the one rendered at once."""

from __future__ import annotations

import asyncio
import random
import string
import threading
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from textual.app import App, ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Markdown
from tools.bench import ui_feed

from dflash_core.clean import clean, token_label
from dflash_tui.text import segments
from dflash_tui.text.segments import Segmenter
from dflash_tui.widgets import streamed, table
from dflash_tui.widgets.roomy import Fence
from dflash_tui.widgets.streamed import Segment, Streamed
from dflash_tui.widgets.table import Table, fold_tables
from support.grids import full

from .support import screen_text, shows, wait_until

PLAIN = MarkdownIt("gfm-like", {"html": False})  # Textual's own lists are what ours must look like


PLAIN.core.ruler.push("fold_tables", partial(fold_tables, rows=None))


class OneShot(Markdown):
    """A message rendered at once by Textual's own widgets, except code blocks, which have a header here, and tables."""

    BLOCKS = Markdown.BLOCKS | {"fence": Fence, "code_block": Fence}

    def unhandled_token(self, token: Token) -> Any:
        return Table(self, token) if token.type == table.TABLE else None


LIST = "".join(f"- item {number} with some words to fill it\n" for number in range(24))
ORDERED = "Steps:\n\n" + "".join(f"1. step {number} of many that there are\n" for number in range(24)) + "\nDone.\n"
NESTED = "".join(f"* outer {n}\n    - inner one\n    - inner two\n\n      more\n" for n in range(10))
FENCE = "Code:\n\n```python\n" + "".join(f"value_{n} = {n} * {n}\n" for n in range(70)) + "```\n\nAfter.\n"
TABLE = "| a | b |\n|---|---|\n" + "".join(f"| {n} | {n * n} |\n" for n in range(24)) + "\nAfter.\n"
DOCUMENTS = {
    "paragraphs": "One *two* **three** `four`.\n\nFive\nsix.\n\n# Head\n\nSetext\n======\n\nTwo\n---\n\ntext",
    "fences": "~~~\na\n\nb\n~~~\n\n````md\n```\ninner\n```\n````\n\n```\nunclosed\n\n- not a list",
    "lists": "- a\n- b\n\n  loose\n- c\n  - d\n    1. e\n\n2) x\n3) y\n\ntext\n- - -\n* * *\n",
    "quotes": "> quote\n> more\n>\n> - list\n\nlazy\n> again\ncontinued\n",
    "html between": "word\n\n<div>\nx\n</div>\n\nend\n\n<!-- c -->\n\nmore\n",
    "html": "<b>bold</b>\n\n<div>\n- no list\n</div>\n\ntext & more &amp; more\n",
    "crlf": "a\r\nb\r\n\r\n- c\r\n- d\r\n\r\n```\r\ncode\r\n```\r\n",
    "references": "See [a][1] and [b].\n\n[1]: http://example.org\n[b]: http://example.com\n",
    "table links": "| x | y |\n|---|---|\n| [a](http://example.org) | b |\n| c | d |\n",
    "math": "$$\na_1 - b\n$$\n\ninline $x$ and 5 * 3 * 2\n",
    "separators": "a\x0cb\u2028c\x85d\n\ne\x1cf\n",
    "list": LIST,
    "ordered": ORDERED,
    "nested": NESTED,
    "fence": FENCE,
    "table": TABLE,
    "long paragraph": "word and more " * 90 + "\n\nend\n",
    "list then fence": LIST + "```\ncode\n```\n" + "+ other\n" * 3,
}


@pytest.fixture(autouse=True)
def small_limits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same cuts on shorter documents: rendering the real lengths takes seconds."""
    if "measured" not in request.node.name:
        monkeypatch.setattr(segments, "LIST_LIMIT", 150)
        monkeypatch.setattr(segments, "BLOCK_LIMIT", 700)
        monkeypatch.setattr(segments, "TABLE_LIMIT", 90)
        monkeypatch.setattr(streamed, "WHOLE_LIMIT", 900)
        monkeypatch.setattr(streamed, "GROUP", 3)


def chunks(text: str, seed: int, most: int) -> list[str]:
    random_ = random.Random(seed)
    parts, at = [], 0
    while at < len(text):
        size = random_.randint(1, most)
        parts.append(text[at : at + size])
        at += size
    return parts


class Host(App[None]):
    CSS = """
    Streamed, Markdown { height: auto; }
    Segment, Markdown { padding: 0; }
    VerticalScroll { height: 1fr; }
    Markdown > MarkdownHeader, Markdown > MarkdownBlockQuote, Markdown > MarkdownFence { margin: 0 0 1 0; }
    """

    def __init__(self, text: str, parts: list[str] | None, ours: bool = False) -> None:
        super().__init__()
        self.text, self.parts, self.ours = text, parts, ours

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            if self.parts is not None:
                yield Streamed()
            elif self.ours:
                yield Segment(0)
            else:
                yield OneShot(self.text, parser_factory=lambda: PLAIN)


async def rendered(text: str, parts: list[str] | None, *, ours: bool = False) -> str:
    """The screen with a message streamed in `parts`, or else rendered at once by Textual's widgets (by our own with
    `ours`)."""
    app = Host(text, parts, ours)
    async with app.run_test(size=(70, 160)) as pilot:
        if parts is not None:
            streamed = app.query_one(Streamed)
            for part in parts:
                await streamed.feed(clean(part))
            await streamed.finish()
            assert streamed.text == clean(text)
        elif ours:
            await app.query_one(Segment).append(text)
        await pilot.pause()
        return screen_text(app).rstrip()


# Kinds that others hold too; with `full`.
MORE_DOCUMENTS = ("lists", "fences", "list", "ordered", "html between", "table links")


async def test_the_end_of_a_long_list_leaves_time_for_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is parsed once, in a thread, and until all of it is there the screen shows what it showed."""
    parsed: list[tuple[bool, int]] = []
    parse = MarkdownIt.parse

    def counted(self: MarkdownIt, text: str, *more: Any) -> list[Token]:
        parsed.append((threading.current_thread() is threading.main_thread(), len(text)))
        return parse(self, text, *more)

    monkeypatch.setattr(MarkdownIt, "parse", counted)
    text = "".join(f"{number + 1}. step\n" for number in range(300))
    app = Host(text, [])
    async with app.run_test(size=(70, 340)) as pilot:
        body = app.query_one(Streamed)
        for part in (*chunks(text, 1, 60), "\nAfter.\n"):
            await body.feed(part)
        await pilot.pause()
        before = screen_text(app).split()
        assert before[-1] == "After."
        assert before[:-1] == text.split()
        await body.finish()
        await pilot.pause()
        assert screen_text(app).split() == before
    assert [size for here, size in parsed if size and not here] == [len(text) + 1]
    assert max(size for here, size in parsed if here) <= streamed.WHOLE_LIMIT


@pytest.mark.parametrize("name", [full(name) if name in MORE_DOCUMENTS else name for name in DOCUMENTS])
async def test_streamed_equals_one_shot(name: str) -> None:
    text = DOCUMENTS[name]
    most = 12 if len(text) < 1000 else 120
    assert await rendered(text, chunks(text, 1, most)) == await rendered(clean(text), None)


async def test_a_long_list_is_cut_while_it_streams() -> None:
    app = Host("", [])
    async with app.run_test(size=(70, 40)):
        streamed = app.query_one(Streamed)
        longest = 0
        for part in chunks(ORDERED.removesuffix("\nDone.\n"), 2, 60):
            await streamed.feed(part)
            longest = max(longest, len(streamed.query(Segment).last().source))
        assert len(streamed.query(Segment)) > 1
        assert longest < segments.LIST_LIMIT + 300
        starts = [segment.source.split(" ", 1)[0] for segment in list(streamed.query(Segment))[1:]]
        assert all(start.rstrip(".").isdigit() and start != "1." for start in starts), "numbering goes on"
        await streamed.feed("\nDone.\n")
        assert [segment.source for segment in streamed.query(Segment)][-1] == "Done.\n", "the list is over"
        assert len(streamed.query(Segment)) == 2
        await streamed.finish()
        assert len(streamed.query(Segment)) == 2


@pytest.mark.parametrize("text", [FENCE, TABLE])
async def test_a_long_block_goes_on_as_plain_lines_until_it_closes(text: str) -> None:
    app = Host("", [])
    async with app.run_test(size=(70, 40)) as pilot:
        streamed = app.query_one(Streamed)
        body, end = text.rsplit("\n\nAfter", 1)
        await streamed.feed(body.rsplit("\n", 1)[0] + "\n")
        for part in chunks(body.rsplit("\n", 1)[1], 3, 5):
            await streamed.feed(part)
        assert len(streamed.query(".tail")) >= (1 if text is TABLE else 0)
        await streamed.feed("\n\nAfter" + end)
        await wait_until(pilot, lambda: not streamed.query(".tail"))


WORDS = st.sampled_from(
    ["word", "*em*", "`code`", "**two words**", "a|b", "[link](http://x.org)", "1.", "-", "#", "世界"]
)
LINES = st.lists(WORDS, min_size=1, max_size=9).map(" ".join)
# Blocks of Markdown, some of them longer than their limits, with and without a blank line after them.
BLOCKS = st.one_of(
    LINES,
    LINES.map(lambda line: f"## {line}"),
    LINES.map(lambda line: f"> {line}\n> {line}"),
    st.lists(LINES, min_size=1, max_size=16).map("\n".join),
    st.lists(LINES, min_size=1, max_size=14).map(lambda lines: "\n".join(f"- {line}" for line in lines)),
    st.lists(LINES, min_size=1, max_size=14).map(lambda lines: "\n".join(f"{n}. {x}" for n, x in enumerate(lines, 3))),
    st.lists(LINES, min_size=1, max_size=6).map(lambda lines: "\n".join(f"* {line}\n\n  more\n" for line in lines)),
    st.lists(LINES, min_size=1, max_size=6).map(lambda lines: "\n".join(f"- {line}\n   1. inner" for line in lines)),
    st.lists(LINES, min_size=1, max_size=20).map(lambda lines: "```py\n" + "\n\n".join(lines) + "\n```"),
    st.lists(LINES, min_size=1, max_size=9).map(
        lambda lines: "| a | b |\n|--:|---|\n" + "\n".join(f"| {x} | 1 |" for x in lines)
    ),
    st.sampled_from(["---", "    indented\n\n    code", "~~~\nopen\n~~~", "Title\n====="]),
)
MESSAGES = st.lists(st.tuples(BLOCKS, st.sampled_from(["\n\n", "\n\n", "\n"])), min_size=1, max_size=9).map(
    lambda blocks: "".join(block + end for block, end in blocks)
)


def same_either_way(text: str, seed: int, most: int) -> None:
    async def check() -> None:
        assert await rendered(text, chunks(text, seed, most)) == await rendered(text, None, ours=True)

    asyncio.run(check())


STREAMS = (MESSAGES, st.integers(0, 99), st.sampled_from([5, 60, 400]))
EACH = settings(
    deadline=None,
    phases=[Phase.generate],  # making an example smaller takes minutes
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.function_scoped_fixture,
    ],  # the limits are the same for all
)


@given(*STREAMS)
@settings(EACH, max_examples=2)
def test_a_message_looks_the_same_however_it_came(text: str, seed: int, most: int) -> None:
    same_either_way(text, seed, most)


@pytest.mark.full
@given(*STREAMS)
@settings(EACH, max_examples=300)
def test_many_messages_look_the_same_however_they_came(text: str, seed: int, most: int) -> None:
    same_either_way(text, seed, most)


def segments_of(text: str, seed: int) -> tuple[str, Segmenter]:
    segmenter = Segmenter()
    ops = [op for part in chunks(text, seed, 7) for op in segmenter.feed(part)] + segmenter.finish()
    return "".join(op.text for op in ops), segmenter


@given(
    st.text(alphabet=string.printable.replace("\r", "").replace("\x0b", "").replace("\x0c", ""), max_size=600),
    st.integers(0, 9),
)
@settings(max_examples=60, deadline=None)
def test_nothing_is_lost(text: str, seed: int) -> None:
    joined, _ = segments_of(text, seed)
    assert joined == text


@pytest.mark.parametrize("name", ["list", "nested", "fence", "table", "long paragraph"])
def test_nothing_is_lost_of_long_blocks(name: str) -> None:
    joined, _ = segments_of(DOCUMENTS[name], 4)
    assert joined == DOCUMENTS[name]


@pytest.mark.parametrize("name", ui_feed.DOCUMENTS)
def test_measured_limits_hold_however_long_the_message_is(name: str) -> None:
    """An append parses and lays out the open segment alone; closed segments are never looked at again."""
    segmenter, open_now, longest = Segmenter(), 0, 0
    for part in chunks(ui_feed.DOCUMENTS[name] * 4, 1, 80):
        for op in segmenter.feed(part):
            if op.kind in ("next", "cut", "join"):
                open_now = 0
            if op.kind != "plain":
                open_now += len(op.text)
            longest = max(longest, open_now)
    assert longest < segments.SEGMENT_LIMIT + segments.BLOCK_LIMIT + 300
    assert not segmenter.dirty


async def test_a_fence_is_named_though_its_language_came_late() -> None:
    app = Host("", [])
    async with app.run_test(size=(70, 40)) as pilot:
        for part in ("```", "py", "thon\n", "x = 1\n```\n"):
            await app.query_one(Streamed).feed(part)
        await pilot.pause()
        await shows(pilot, "python  click copies")


@pytest.mark.parametrize("language", ["", "python"])
async def test_no_language_is_guessed(language: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while the language is still arriving. A guess loads every lexer, which stopped the app for 0.3 s at its
    first code."""
    guessed: list[str] = []
    monkeypatch.setattr("textual.highlight.guess_language", lambda code, path: guessed.append(code) or "text")
    app = Host("", [])
    async with app.run_test(size=(70, 40)) as pilot:
        for part in ("```", f"{language}\n", "x = 1\n", "y = 2\n```\n"):
            await app.query_one(Streamed).feed(part)
        await pilot.pause()
        await shows(pilot, "x = 1")
    assert guessed == []


async def test_a_table_gives_way_where_there_is_no_room() -> None:
    text = "| name | text | n |\n|---|:-:|--:|\n| **a** | " + "many words " * 12 + "| 7 |\n| b | one | 12 |\n"
    for width in (60, 24, 5):
        app = Host("", [])
        async with app.run_test(size=(width, 60)) as pilot:
            await app.query_one(Streamed).feed(text)
            await app.query_one(Streamed).finish()
            await pilot.pause()
            rows = [row.rstrip() for row in screen_text(app).splitlines()]
            if width == 60:
                assert rows[0] == f"name │ {'text':^48} │  n".rstrip()
                assert any(row.startswith("b ") and row.endswith("│ 12") for row in rows)
            if width > 5:
                assert sum(row.count("words") for row in rows) == 12, "every word is there"
            assert all(len(row) <= width for row in rows)


def test_limits_are_the_measured_ones() -> None:
    assert (segments.LIST_LIMIT, segments.TABLE_LIMIT, segments.BLOCK_LIMIT) == (200, 500, 2_000)


def test_clean_and_token_label() -> None:
    assert clean("a\r\nb\tc\x1b[0m") == "a\nb    c\ufffd[0m"
    assert token_label(" the\n") == "␣the↵"
    assert token_label("") == "∅"
    assert token_label("\x1b") == "\ufffd"
