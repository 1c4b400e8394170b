"""Find in the conversation: every match is marked, in any kind of block, and can be reached."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from textual.color import Color

from dflash_core.knobs import Knobs
from dflash_tui.app import DFlashApp
from dflash_tui.widgets import transcript
from dflash_tui.widgets.find_bar import FindBar
from dflash_tui.widgets.marks import Stretch, stretches
from dflash_tui.widgets.transcript import Transcript

from .fake import FakeSession
from .support import ask, idle, loaded, screen_text, settled, shows, talking, wait_until
from .test_looks import cells
from .test_themes import READABLE, contrast

MakeApp = Callable[..., DFlashApp]
THEMES = ("dflash-night", "dflash-paper")
EVERYWHERE = """A fox, and a Fox: two foxes in one line.

## The fox of the heading

```go
func fox() {
\tif fox == nil { return "fox" }
}
```

- a fox in a list
  1. and a *fox* below it
- no hen

| animal | count |
|--------|------:|
| hen    |     1 |
| fox    |    12 |

> a quoted fox
"""
PLACES = 3 + 1 + 3 + 2 + 1 + 1


def marks(app: DFlashApp) -> list[tuple[str, Color, Color]]:
    """What is marked on the screen, from top to bottom: its text, color and background."""
    bar = app.chat.query_one(FindBar)
    grounds = {bar.get_component_rich_style(name).bgcolor for name in ("find--place", "find--here")}
    known = {Color.from_rich_color(one) for one in grounds if one is not None}
    return [one for one in cells(app) if one[2] in known]


def here(app: DFlashApp) -> str:
    """The words of the current match."""
    style = app.chat.query_one(FindBar).get_component_rich_style("find--here")
    assert style.bgcolor is not None
    return "".join(text for text, _, ground in marks(app) if ground == Color.from_rich_color(style.bgcolor))


# Each theme at one width; with `full` at both.
@pytest.mark.parametrize(
    ("size", "theme"),
    [
        pytest.param((width, 60), theme, id=f"{width}-{theme}", marks=() if at == turn else pytest.mark.full)
        for at, theme in enumerate(THEMES)
        for turn, width in enumerate((80, 120))
    ],
)
async def test_every_place_is_marked_in_every_kind_of_block(
    make_app: MakeApp, theme: str, size: tuple[int, int]
) -> None:
    app = make_app(FakeSession(answer=EVERYWHERE, thinking=""), theme=theme)
    async with app.run_test(size=size) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await idle(pilot)
        await pilot.press("ctrl+f", *"fox", "enter")
        await shows(pilot, f"{PLACES} of {PLACES}")
        await settled(pilot)
        assert [text.lower() for text, _, _ in marks(app)] == ["fox"] * PLACES
        assert here(app) == "fox"
        for text, color, ground in marks(app):
            assert contrast(color, ground) >= READABLE, f"{text}: {color.hex} on {ground.hex}"
        for turn in range(PLACES):
            await pilot.press(("n", "enter")[turn % 2])
            await settled(pilot)
            grounds = [ground for _, _, ground in marks(app)]
            assert grounds.count(grounds[turn]) == 1, "one stands out"
        await pilot.press("escape")
        await settled(pilot)
        assert not marks(app)


async def test_a_place_in_folded_thinking_is_counted_and_opened(make_app: MakeApp) -> None:
    thinking = "First a fox.\nThen\nthe other fox.\n"
    app = make_app(FakeSession(answer="A hen.\n", thinking=thinking), Knobs(thinking=True))
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await idle(pilot)
        assert "the other fox" not in screen_text(app)
        await pilot.press("ctrl+f", *"fox", "enter")
        await shows(pilot, "2 of 2", "▼ thought for", "the other fox.")
        await settled(pilot)
        assert len(marks(app)) == 2
        await pilot.press("escape", "alt+t")
        await wait_until(pilot, lambda: "the other fox" not in screen_text(app))


async def test_a_place_in_an_earlier_turn_is_opened_and_scrolled_to(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcript, "SHOWN", 4)
    turns = [(f"question {number}", f"Answer {number}.\n\nA hen.\n") for number in range(7)]
    async with talking(make_app, *turns, size=(80, 24)) as (app, pilot, _):
        earlier = app.chat.query_one(Transcript).earlier
        await wait_until(pilot, lambda: bool(earlier.texts))
        await pilot.press("ctrl+f", *"answer 1.", "enter")
        await shows(pilot, "1 of 1", "Answer 1.")
        await settled(pilot)
        assert here(app) == "Answer 1."


async def test_a_place_far_down_in_one_block_is_scrolled_to(make_app: MakeApp) -> None:
    code = "\n".join(f"line_{number} = {number}" for number in range(200))
    app = make_app(FakeSession(answer=f"```python\n{code}\n```\n\n{'A hen sings. ' * 400}\n", thinking=""))
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await idle(pilot)
        for wanted in ("line_123", "line_55", "line_199"):
            await pilot.press("ctrl+f")
            app.chat.query_one("#find-words").value = wanted  # type: ignore[attr-defined]
            await wait_until(pilot, lambda: app.chat.query_one(FindBar).found == 1)
            await settled(pilot)
            assert here(app) == wanted


async def test_what_has_come_since_is_found_too(make_app: MakeApp) -> None:
    async with talking(make_app, ("hi", "A fox.\n\nAnd a fox.\n"), size=(80, 24)) as (app, pilot, session):
        await pilot.press("ctrl+f", *"fox", "enter", "N")
        await shows(pilot, "1 of 2")
        session.answer = "No hen, a fox.\n"
        await app.chat.parts.sending.send("again", "again")
        await idle(pilot)
        await pilot.press("n")
        await shows(pilot, "2 of 3")
        await pilot.press("n")
        await shows(pilot, "3 of 3")


async def test_without_color_places_are_marked_too(make_app: MakeApp, no_color: None) -> None:
    app = make_app(FakeSession(answer="A fox, and a fox.\n", thinking=""))
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await idle(pilot)
        await pilot.press("ctrl+f", *"fox", "enter")
        await shows(pilot, "2 of 2")
        await settled(pilot)
        strips = app.chat._compositor.render_strips()
        styles = [one.style for strip in strips[:-4] for one in strip if one.text == "fox" and one.style is not None]
        places = [(bool(one.underline), bool(one.reverse)) for one in styles]
        assert places[:2] == [(True, False), (False, True)]


def test_places_are_those_of_the_shown_text() -> None:
    assert stretches("Fox fox\n\ta FOX", "fox") == [Stretch(0, 0, 3), Stretch(0, 4, 7), Stretch(1, 10, 13)]
    assert stretches("Straße, STRASSE", "strasse") == [Stretch(0, 0, 6), Stretch(0, 8, 15)]
    assert stretches("aaaa", "aa") == [Stretch(0, 0, 2), Stretch(0, 2, 4)]
    assert stretches("anything", "") == []


RUNS = "it runs through the wood until the evening comes and then it sleeps well in its den"
WORD = "Donaudampfschifffahrtsgesellschaftskapitänsmützenabzeichenverordnungsentwurf"
BROKEN = f"""
| animal | what it does all day long | where |
|--------|--------------------------:|-------|
| fox    | {RUNS} | in the old wood behind the long river |
| hen    | lays eggs | {WORD} |
"""


@pytest.mark.parametrize(
    "wanted", ["evening comes and then it sleeps", "Gesellschaftskapitänsmützen", "old wood behind the"]
)
async def test_words_broken_over_the_lines_of_a_cell_are_one_place(make_app: MakeApp, wanted: str) -> None:
    async with talking(make_app, ("hi", BROKEN), size=(60, 50)) as (app, pilot, _):
        await pilot.press("ctrl+f")
        app.chat.query_one("#find-words").value = wanted  # type: ignore[attr-defined]
        await shows(pilot, "1 of 1")
        await settled(pilot)
        parts = [text for text, _, _ in marks(app)]
        assert len(parts) > 1, "the cell has several lines, and another cell beside it"
        assert "".join(parts).replace(" ", "").casefold() == wanted.replace(" ", "").casefold()
        assert not [part for part in parts if part != part.strip()], "no blank of the cell's edge is marked"
        app.chat.query_one("#find-words").value = "wood"  # type: ignore[attr-defined]
        await shows(pilot, "2 of 2")
