"""A message of Markdown: nothing is lost, and however it was streamed it equals the one rendered at once."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from textual.app import App, ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Markdown

from dflash_core.clean import clean, token_label
from dflash_tui.widgets import items, markdown, table
from dflash_tui.widgets.items import Items
from dflash_tui.widgets.markdown import Code, Fence, Streamed
from dflash_tui.widgets.maths import add_maths
from dflash_tui.widgets.table import Table, fold_tables
from support.grids import full

from .support import screen_text, shows

PLAIN = MarkdownIt("gfm-like", {"html": False})  # Textual's own lists are what ours must look like


add_maths(PLAIN)
PLAIN.core.ruler.push("fold_tables", fold_tables)


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
    "math": "$$\na_1 - b\n$$\n\ninline $x$ and 5 * 3 * 2\n\\[\nx\n=\n- y\n\\]\n- one\n  $$\n  + z\n  $$\n",
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
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same cuts in shorter documents: rendering the real lengths takes seconds."""
    monkeypatch.setattr(items, "PART", 8)
    monkeypatch.setattr(table, "PART", 6)
    monkeypatch.setattr(markdown, "PART", 12)


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
    Markdown { height: auto; padding: 0; }
    VerticalScroll { height: 1fr; }
    .-more { margin: 0; }
    Markdown > MarkdownHeader, Markdown > MarkdownBlockQuote, Markdown > MarkdownFence { margin: 0 0 1 0; }
    """

    def __init__(self, text: str, parts: list[str] | None, ours: bool = False) -> None:
        super().__init__()
        self.text, self.parts, self.ours = text, parts, ours

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            if self.parts is not None or self.ours:
                yield Streamed()
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
            await app.query_one(Streamed).update(text)
            app.query_one(Streamed)._align()
        await pilot.pause()
        return screen_text(app).rstrip()


# Kinds that others hold too; with `full`.
MORE_DOCUMENTS = ("lists", "fences", "list", "ordered", "html between", "table links")


@pytest.mark.parametrize("name", [full(name) if name in MORE_DOCUMENTS else name for name in DOCUMENTS])
async def test_streamed_equals_one_shot(name: str) -> None:
    text = DOCUMENTS[name]
    most = 12 if len(text) < 1000 else 120
    assert await rendered(text, chunks(text, 1, most)) == await rendered(clean(text), None)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that the parser gets from now on."""
    texts: list[str] = []
    parse = MarkdownIt.parse

    def counted(self: MarkdownIt, text: str, *more: Any) -> list[Token]:
        texts.append(text)
        return parse(self, text, *more)

    monkeypatch.setattr(MarkdownIt, "parse", counted)
    return texts


async def test_a_list_that_grows_is_parsed_from_its_last_part_on(parsed: list[str]) -> None:
    app = Host("", [])
    async with app.run_test(size=(70, 40)) as pilot:
        body = app.query_one(Streamed)
        text = "".join("1. step of many that there are\n" for _ in range(105))
        for part in chunks(text, 2, 60):
            await body.feed(part)
        assert max(part.count("\n") for part in parsed) <= items.PART + 2
        shown = list(body.query(Items))
        assert [block.part.number for block in shown] == list(range(1, 106, items.PART)), "numbering goes on"
        await pilot.pause()
        rows = "\n".join(str(block.shown) for block in shown).split("\n")
        assert [row.strip() for row in rows] == [f"{n}. step of many that there are" for n in range(1, 106)]
        await body.finish()
        assert list(body.query(Items)) == shown, "nothing of it is made again"


async def test_a_table_that_grows_is_parsed_from_its_last_part_on(parsed: list[str]) -> None:
    app = Host("", [])
    async with app.run_test(size=(70, 60)) as pilot:
        body = app.query_one(Streamed)
        for part in chunks("| n | square |\n|--:|---|\n" + "".join(f"| {n} | {n * n} |\n" for n in range(32)), 2, 30):
            await body.feed(part)
        assert max(part.count("\n") for part in parsed) <= table.PART + 4
        shown = list(body.query(Table))
        assert len(shown) == 6
        await pilot.pause()
        rows = [" n │ square", "───┼───────", *(f"{n:>2} │ {n * n}" for n in range(32))]
        assert [row.rstrip() for row in screen_text(app).splitlines() if row.strip()] == rows
        await body.finish()
        assert list(body.query(Table)) == shown, "nothing of it is made again"


async def test_code_that_grows_is_highlighted_from_its_last_part_on(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Host("", [])
    async with app.run_test(size=(70, 40)) as pilot:
        body = app.query_one(Streamed)
        lines = ["```python", 'text = """', *(f"value = {n}" for n in range(40)), '"""', "last = 1", "```", "", "After"]
        given: list[str] = []
        highlighted = Fence._highlighted
        monkeypatch.setattr(Fence, "_highlighted", lambda self, code: (given.append(code), highlighted(self, code))[1])
        for line in lines[:-2]:
            await body.feed(f"{line}\n")
        assert max(code.count("\n") for code in given) < markdown.PART
        await body.feed("\n".join(lines[-2:]))
        await pilot.pause()
        fence, shown = body.query_one(Fence), [code.visual for code in body.query(Code)]
        assert fence.code == "\n".join(lines[1:-3])
        assert "\n".join(str(part) for part in shown) == fence.code
        whole = highlighted(fence, fence.code)
        assert sum(len(part.spans) for part in shown) >= len(whole.spans), "a text over several parts is one text"  # type: ignore[attr-defined]
        assert given[-1] == fence.code


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
    LINES.map(lambda line: f"$$\n{line}\n=\n{line}\n$$"),
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


@pytest.mark.parametrize(
    "text",
    [
        r"Euler: $e^{i\pi} + 1 = 0$, with $a_*b$ and $c_*d$.",
        r"\( a_b * c_d * \{e\} \) and \[ q \\[2pt] \, r \]",
        "$$\n\\int_0^1 x\\,dx\n= 4\n- 3 \\\\\n===\n$$",
        "\\[\nx\n=\ny\n\\]",
        r"[a $x]_y_$](http://x.org) \$5 *or* \$6",
    ],
)
async def test_a_formula_is_shown_as_it_was_written(text: str) -> None:
    shown = r"a $x]_y_$ $5 or $6" if "http" in text else text
    assert await rendered(text, chunks(text, 1, 3)) == shown


@pytest.mark.parametrize(
    "text", ["It costs $5 or *about* $6", "echo $$ *and* $HOME", "`$a` *b* `$c`", r"\\( *a* \\)", "$$\n*a*"]
)
async def test_a_dollar_or_a_bracket_alone_is_no_formula(text: str) -> None:
    assert "*" not in await rendered(text, None, ours=True)


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


def test_clean_and_token_label() -> None:
    assert clean("a\r\nb\tc\x1b[0m") == "a\nb    c\ufffd[0m"
    assert token_label(" the\n") == "␣the↵"
    assert token_label("") == "∅"
    assert token_label("\x1b") == "\ufffd"
