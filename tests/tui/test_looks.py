"""Rules for every screen, checked on its drawn cells: contrast, one accent, one spelling of keys, nothing clipped."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from textual.color import Color
from textual.geometry import Region
from textual.screen import ModalScreen
from textual.widget import Widget

from dflash_core.errors import DFlashError
from dflash_core.resources import themes_dir
from dflash_tui.app import DFlashApp
from dflash_tui.settings.themes import load_themes
from dflash_tui.widgets.dialogs import TextScreen
from dflash_tui.widgets.find_bar import FindBar
from dflash_tui.widgets.flash import Flash, stays_s
from dflash_tui.widgets.key_line import Hint, KeyLine, fitting

from .fake import FakeSession
from .gallery import walk
from .scenes import answered, send
from .support import loaded, screen_text, settled, shows, smallest, strips_of, wait_until
from .test_every_key import BASES, CHAT, every_screen
from .test_themes import READABLE, SOURCES, contrast

MakeApp = Callable[..., DFlashApp]
THEMES = ("dflash-night", "dflash-paper")
BLOCK = 24  # screens one after the other in the same theme
DRAWN = re.compile(r"[\u2500-\u259f\u25a0-\u25ff\s]+")  # lines, bars, marks of a plot: no text
# As no key is written: Ctrl+R, Esc, Enter, F8, ← are.
KEY = re.compile(
    r"(?<![\w/.-])(\^[a-z]\b|esc\b|ctrl\+|alt\+|shift\+|f[1-9]\b|f1[0-2]\b|pgup|pgdn|⏎|Control|PageUp|Return\b|ESC\b)"
)

DANGLING = re.compile(r"\w ·(?:\s{2,}|\s*[│▏]|\s*$)", re.MULTILINE)  # a dot that parts a figure from nothing


def cells(app: DFlashApp) -> Iterator[tuple[str, Color, Color]]:
    """Each run of text on the screen in front, its color and its background."""
    screen = app.screen
    front = screen.children[0].region if isinstance(screen, ModalScreen) else Region(0, 0, *screen.size)
    for y, strip in enumerate(strips_of(app)):
        x = 0
        for segment in strip:
            inside = front.contains_point((x, y))
            x += len(segment.text)
            style = segment.style
            if not inside or style is None or DRAWN.fullmatch(segment.text) or not segment.text:
                continue
            assert style.color is not None
            assert style.bgcolor is not None, segment.text
            yield segment.text, Color.from_rich_color(style.color), Color.from_rich_color(style.bgcolor)


# A change of the theme styles every widget again: so each screen is looked at in one of them; with `full` in both.
@pytest.mark.parametrize("both", [False, pytest.param(True, marks=pytest.mark.full)], ids=["in-turn", "both"])
async def test_every_text_on_every_screen_can_be_read(make_app: MakeApp, both: bool) -> None:
    """At the colors that the cells have; and keys have one spelling. One walk: it takes seconds."""
    app = make_app()
    found: dict[str, str] = {}
    seen: set[type] = set()
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        entry = 0
        async for name in walk(app, pilot):
            seen.add(type(app.screen))
            turn, entry = THEMES[entry // BLOCK % 2], entry + 1
            for fading in app.screen.query(Flash).results():
                if fading.styles.opacity < 1:
                    fading.hide()
            for theme in sorted(THEMES, key=lambda theme: theme != app.theme) if both else (turn,):
                if theme != app.theme:
                    app.theme = theme
                    await pilot.pause()
                for text, color, ground in cells(app):
                    if (ratio := contrast(color, ground)) < READABLE:
                        found[f"{theme} {name} {text.strip()!r}"] = f"{ratio:.2f}: {color.hex} on {ground.hex}"
            shown = screen_text(app)
            assert name == "prompt" or not KEY.findall(shown), name  # that one is a model's text
            assert not DANGLING.search(shown), name
    assert not found, "\n".join(f"{where}: {what}" for where, what in found.items())
    assert seen >= every_screen() - BASES - CHAT, "a screen is missing in the gallery"


@pytest.mark.parametrize("name", THEMES)
def test_there_is_one_accent_and_amber_is_for_warnings(name: str) -> None:
    theme = next(theme for theme in load_themes([themes_dir()]).themes if theme.name == name)
    assert theme.accent == theme.primary
    assert theme.warning not in (theme.accent, theme.primary, theme.secondary, theme.success)
    warned = re.compile(r'"(?:bold )?\$warning')
    users = {path.name for path in SOURCES.rglob("*.py") if warned.search(path.read_text())}
    # Figures that are off, a context that is nearly full, a file that cannot be read.
    assert users == {"panels.py", "strip.py", "offered.py"}


@pytest.mark.parametrize("theme", THEMES)
async def test_the_place_that_find_has_come_to_is_marked_otherwise(make_app: MakeApp, theme: str) -> None:
    app = make_app(FakeSession(answer="The fox runs.\n\n```python\nfox = 1\n```\n"), theme=theme)
    async with app.run_test(size=(80, 24)) as pilot:
        await answered(pilot)
        await pilot.press("ctrl+f", *"fox", "enter")
        bar = app.chat.query_one(FindBar)
        await wait_until(pilot, lambda: bar.found == 2)

        async def marked(at: int) -> list[tuple[Color, Color]]:
            await shows(pilot, f"{at} of 2")
            await settled(pilot)
            # Not the line of the search itself, which is the first.
            places = [(color, ground) for text, color, ground in cells(app) if text == "fox"]
            assert len(places) == 3
            return places[:2]

        (text, ground), there = [*reversed(await marked(2))]
        assert ground != there[1], "in the fence, and not in the text"
        assert contrast(text, ground) >= READABLE
        assert contrast(*there) >= READABLE
        await pilot.press("n")
        first, second = await marked(1)
        assert first == (text, ground)
        assert second[1] != ground
        await pilot.press("escape")
        await wait_until(pilot, lambda: not bar.display)
        await settled(pilot)
        assert not [one for one in cells(app) if one[2] == ground and "fox" in one[0]]


@smallest
async def test_a_notice_moves_no_text(make_app: MakeApp, size: tuple[int, int]) -> None:
    app = make_app()
    async with app.run_test(size=size) as pilot:
        await answered(pilot)
        before = (await settled(pilot)).splitlines()
        app.chat.say(DFlashError("x.jsonl: No space left on device; free some, or write elsewhere"))
        await shows(pilot, "No space left on device")
        during = screen_text(app).splitlines()
        changed = [place for place, (a, b) in enumerate(zip(before, during, strict=True)) if a != b]
        covered = app.chat.query_one(Flash).region
        assert changed
        assert all(covered.y <= place < covered.bottom for place in changed)
        assert app.chat.query_one(Flash).styles.color == Color.parse(app.theme_variables["error"])
        app.chat.query_one(Flash).hide()
        assert (await settled(pilot)).splitlines() == before


async def test_what_was_said_can_be_read_again(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await send(pilot, "/set bogus 7")
        await shows(pilot, "bogus")
        refusal = app.chat.query_one(Flash).text
        app.chat.prompt.text = ""
        for number in range(3):
            app.chat.say(f"fact {number}")
        assert refusal not in app.chat.query_one(Flash).text
        await send(pilot, "/notices")
        await wait_until(pilot, lambda: isinstance(app.screen, TextScreen))
        lines = app.notices.page().splitlines()
        assert [line.split("  ", 1)[1] for line in lines] == ["fact 2", "fact 1", "fact 0", f"✗ {refusal}"]
        await shows(pilot, "fact 0", "✗ ")


def test_a_longer_fact_stays_longer() -> None:
    assert stays_s("saved") == 5
    assert stays_s("x" * 300) > 20


def test_the_footer_has_whole_words_and_the_way_back() -> None:
    keys = (("Enter", "Use"), ("s", "Save preset"), ("r", "Again"), ("f", "File"), ("F1", "Help"), ("Esc", "Back"))
    hints = [Hint(key, label, {"F1": "f1", "Esc": "escape"}.get(key, key)) for key, label in keys]
    for width in range(18, 70):
        kept = fitting(hints, width)
        assert sum(one.width for one in kept) + 2 * (len(kept) - 1) <= width
        assert [one.key for one in kept[-2:]] == ["f1", "escape"]
    assert fitting(hints, 60) == hints
    assert [one.shown for one in fitting(hints, 40)] == ["Enter", "r", "F1", "Esc"]


async def test_a_click_on_the_footer_is_the_key(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        row = screen_text(app).splitlines()[-1]
        await pilot.click(KeyLine, offset=(row.index("F2 Params") + 4, 0))
        await wait_until(pilot, lambda: app.chat.inspector.active == "params")
        await shows(pilot, "← → Change")


def test_help_spells_keys_as_the_footer_does() -> None:
    helps = [getattr(one, "HELP", None) or "" for one in every_widget()]
    assert sum(map(bool, helps)) > 10
    assert not [text for text in helps if KEY.search(text) or re.search(r"\b(Up|Down|Left|Right)\b", text)]


def every_widget() -> list[type[Widget]]:
    left, found = [Widget], []
    while left:
        for one in left.pop().__subclasses__():
            left.append(one)
            if one.__module__.startswith("dflash_tui."):
                found.append(one)
    return found


async def test_the_footer_outlives_what_it_asks_about(make_app: MakeApp) -> None:
    """The footer asks by a timer, and the first widgets of a screen are removed before the last ones."""
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        app.chat.open_page("tune")
        await wait_until(pilot, lambda: app.screen is not app.chat)
        line = app.screen.query_one(KeyLine)
        await wait_until(pilot, lambda: bool(line.hints))
        await app.screen.query_one("#lab-table").remove()
        line._look()
        assert line.hints
