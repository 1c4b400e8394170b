"""Lists drawn as lines of one widget: they look as Textual's own do, can be selected, and their cost is linear."""

from __future__ import annotations

import random

import pytest
from markdown_it.token import Token
from textual.geometry import Offset
from textual.pilot import Pilot
from textual.selection import SELECT_ALL, Selection
from textual.widget import Widget
from textual.widgets import Markdown

from dflash_tui.widgets.items import PART, Items
from dflash_tui.widgets.markdown import Parser, Streamed

from .fake import FakeSession
from .support import ask, idle, loaded, screen_text, shows
from .test_markdown import Host, chunks

WORDS = ("plain", "*em*", "**strong**", "`code`", "~~gone~~", "[link](http://example.org)", "wide 世界", "a-b", "&amp;")
DOCUMENTS = {
    "styles": "- *a* **b** `c` ~~d~~ [e](http://example.org) https://example.org\n- f\n",
    "loose": "- a\n\n  second *paragraph*\n\n- b\n\n\n- c\n\nend\n",
    "numbers": "\n".join(f"{n}. item {n} of them" for n in range(97, 103)) + "\n\nend\n",
    "any numbers": "7) a\n7) b\n1) c\n",
    "nested": "- a\n  - b\n    1. c\n       - d\n         * e\n  - f\n\n    g\n- h\n",
    "kinds": "1. a\n   - b\n     2. c\n        - d\n2. e\n",
    "bullets of bullets": "- - a\n  - b\n- 1. c\n- - - d\n",
    "hard break": "- one  \n  two\\\n  three\n- four\n",
    "in a quote": "> - a\n> - b\n>   - c\n>\n> end\n",
    "beside code": "- a\n- b\n  - inner\n  - more\n\n  ```\n  code\n  ```\n- c\n  1. d\n\nend\n",
    "beside what is no text": "- a\n- b\n  - inner\n  - more\n\n  | x |\n  |---|\n  | y |\n- c\n  1. d\n\nend\n",
    "two of them": "- a\n- b\n\n* c\n* d\n\n1. e\n",
    "wrapped": "- " + "some words to fill it " * 9 + "\n  - " + "and inner ones " * 9 + "\n",
    "one word": "- " + "x" * 150 + "\n- 世界" + "世" * 60 + "\n",
    "html": "- <b>bold</b>\n- <div>\n",
    "headings": "# a\n- b\n\n#### c\n- d\n#### e\n",
}


def random_list(seed: int) -> str:
    """A list of any form."""
    pick = random.Random(seed)
    lines, depth = [], 0
    for _ in range(20):
        depth = max(0, min(depth + pick.randint(-2, 1), 3))
        mark = "-" if depth % 2 else "1."
        lines.append("   " * depth + f"{mark} " + " ".join(pick.choices(WORDS, k=pick.randint(1, 16))))
        if pick.random() < 0.1:
            lines.append("")
    return "\n".join(lines) + "\n"


def cells(host: Host) -> list[list[str]]:
    """What each cell of the screen shows: its character, its colors, its attributes."""
    found = []
    for strip in host.screen._compositor.render_strips():
        row = []
        for text, style, _ in strip:
            assert style is not None
            assert style.bgcolor is not None
            marks = "".join(name[0] for name in ("bold", "italic", "underline", "strike") if getattr(style, name))
            for character in text:
                seen = style.color.name if style.color is not None and character != " " else ""
                row.append(f"{character} {seen} on {style.bgcolor.name} {marks if seen else marks.strip('bi')}")
        found.append(row)
    return found


def plain(row: list[str]) -> str:
    return "".join(cell[0] for cell in row).rstrip()


async def looks(text: str, parts: list[str] | None, theme: str, width: int) -> list[list[str]]:
    host = Host(text, parts)
    async with host.run_test(size=(width, 120)) as pilot:
        host.theme = theme
        if parts is not None:
            body = host.query_one(Streamed)
            for part in parts:
                await body.feed(part)
            await body.finish()
            assert body.query(Items), "it is drawn as lines"
        await pilot.pause()
        return cells(host)


@pytest.mark.parametrize("name", [*DOCUMENTS, 1, *(pytest.param(seed, marks=pytest.mark.full) for seed in (2, 3))])
async def test_a_list_looks_as_one_of_textual(name: str | int) -> None:
    text = DOCUMENTS[name] if isinstance(name, str) else random_list(name)
    theme = "textual-light" if name in ("styles", 1) else "textual-dark"
    width = 30 if name in ("nested", 2) else 70
    ours, textuals = await looks(text, chunks(text, 1, 40), theme, width), await looks(text, None, theme, width)
    for row, (our, textual) in enumerate(zip(ours, textuals, strict=True)):
        assert our == textual, (row, plain(our), plain(textual))


async def test_a_long_list_is_in_parts_that_look_like_one() -> None:
    text = "Before\n\n" + "".join(f"{n}. item\n" for n in range(1, 3 * PART)) + "\nAfter\n"
    host = Host(text, [])
    async with host.run_test(size=(70, 120)) as pilot:
        body = host.query_one(Streamed)
        for part in chunks(text, 2, 60):
            await body.feed(part)
        await body.finish()
        await pilot.pause()
        assert len(body.query(Items)) == 3
        rows = screen_text(host).splitlines()
        assert [rows[2], rows[3 * PART]] == ["  1. item", f" {3 * PART - 1}. item"], "one column for all numbers"
        assert rows[3 * PART + 1 : 3 * PART + 3] == ["", "After"]


async def test_an_item_without_text_is_seen() -> None:
    """Textual leaves such an item out."""
    host = Host("", [])
    async with host.run_test(size=(24, 20)) as pilot:
        body = host.query_one(Streamed)
        await body.feed("1. a\n2.\n3. b\n\n   -\n")
        await body.finish()
        await pilot.pause()
        assert screen_text(host).splitlines()[:4] == [" 1. a", " 2.", " 3. b", "    •"]


async def test_what_is_selected_is_what_is_seen() -> None:
    host = Host("", [])
    async with host.run_test(size=(24, 20)) as pilot:
        body = host.query_one(Streamed)
        await body.feed("- first item that is wrapped *once*\n- second\n  1. inner\n")
        await body.finish()
        await pilot.pause()
        items = body.query_one(Items)
        whole = "• first item that is wrapped once\n• second\n   1. inner"
        assert items.get_selection(SELECT_ALL) == (whole, "\n")
        assert items.get_selection(Selection(Offset(8, 0), Offset(8, 1)))[0] == "item that is wrapped once\n• second"
        assert await dragged(pilot, (0, 0), (23, 3)) == whole
        # "wrapped" stands in the second row of the screen, in the first line of the text.
        row = screen_text(host).splitlines().index("  wrapped once")
        host.screen.clear_selection()
        await pilot.pause()
        before = cells(host)[row]
        assert await dragged(pilot, (2, row), (8, row)) == "wrapped"
        changed = [at for at, (old, new) in enumerate(zip(before, cells(host)[row], strict=True)) if old != new]
        assert changed == list(range(2, 9)), "these cells show that they are selected"


async def dragged(pilot: Pilot[None], start: tuple[int, int], end: tuple[int, int]) -> str | None:
    """The text selected by moving the mouse from one cell to another."""
    await pilot.mouse_down(offset=start)
    await pilot.hover(offset=end)
    await pilot.mouse_up(offset=end)
    return pilot.app.screen.get_selected_text()


async def test_a_link_of_a_list_is_clicked() -> None:
    clicked: list[str] = []

    class Linked(Host):
        def on_markdown_link_clicked(self, event: Markdown.LinkClicked) -> None:
            clicked.append(event.href)

    host = Linked("", [])
    async with host.run_test(size=(40, 10)) as pilot:
        body = host.query_one(Streamed)
        await body.feed("- a\n- [link](http://example.org)\n")
        await body.finish()
        await pilot.pause()
        await pilot.click(offset=(3, 1))
        await pilot.pause()
        assert clicked == ["http://example.org"]


async def work_of(monkeypatch: pytest.MonkeyPatch, text: str) -> tuple[int, int, int]:
    """Widgets made, and characters parsed, while a message streams and ends; widgets left."""
    made, characters = 0, 0
    init, parse = Widget.__init__, Parser.parse

    def counted_init(self: Widget, *args: object, **kwargs: object) -> None:
        nonlocal made
        made += 1
        init(self, *args, **kwargs)  # type: ignore[arg-type]

    def counted_parse(self: Parser, text: str) -> list[Token]:
        nonlocal characters
        characters += len(text)
        return parse(self, text)

    host = Host("", [])
    async with host.run_test(size=(70, 40)):
        body = host.query_one(Streamed)
        with monkeypatch.context() as patch:
            patch.setattr(Widget, "__init__", counted_init)
            patch.setattr(Parser, "parse", counted_parse)
            for at in range(0, len(text), 240):
                await body.feed(text[at : at + 240])
            await body.finish()
        return made, characters, len(body.query("*"))


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("1. item {} of them\n", marks=pytest.mark.full),
        "- item {} of them\n    - inner of it\n",
        pytest.param("- item {}:\n\n  ```\n  code\n  ```\n", id="code in each item"),
    ],
)
async def test_what_a_long_list_costs_grows_with_its_length(monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    length = 10 if "```" in line else 30  # a widget for each block of code
    few = await work_of(monkeypatch, "".join(line.format(n) for n in range(length)))
    many = await work_of(monkeypatch, "".join(line.format(n) for n in range(4 * length)))
    assert many[0] < 5 * few[0]
    assert many[1] < 5 * few[1]
    if "```" not in line:
        assert many[2] <= 120 / PART + 2


async def test_the_app_draws_a_list_as_lines(make_app) -> None:  # type: ignore[no-untyped-def]
    session = FakeSession(answer="Steps:\n\n" + "".join(f"{n}. step *{n}*\n" for n in range(1, 80)), thinking="")
    async with make_app(session).run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await ask(pilot, "list them")
        await idle(pilot)
        answer = pilot.app.chat.transcript.answer
        assert len(answer.body.query("*")) < 8
        await shows(pilot, " 79. step 79")
