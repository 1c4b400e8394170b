"""What makes screens hard to read: text that jumps, keys that no footer names, broken columns, very long lines."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from textual.command import CommandList
from textual.widgets import Input

from dflash_tui.app import DFlashApp
from dflash_tui.application.lab_request import parse_ab, parse_sweep
from dflash_tui.screens.experiment import EXAMPLE, ExperimentScreen
from dflash_tui.screens.experiments import ABScreen, SweepScreen, TuneScreen
from dflash_tui.screens.lab import CurveView
from dflash_tui.screens.page import NAMES, HelpScreen
from dflash_tui.screens.palette import Palette
from dflash_tui.widgets.dialogs import LineScreen, TextScreen
from dflash_tui.widgets.find_bar import FindBar
from dflash_tui.widgets.key_line import KeyLine
from support.grids import full

from .gallery import SHOWN
from .scenes import answered
from .support import screen_text, settled, shows, talking, wait_until
from .test_looks import THEMES, cells
from .test_themes import READABLE, contrast

MakeApp = Callable[..., DFlashApp]


def keys(app: DFlashApp) -> list[tuple[str, str]]:
    return [(one.shown, one.label) for one in app.screen.query_one(KeyLine).hints]


async def test_find_moves_no_text_that_is_seen_whole_and_its_keys_are_named(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 60)) as pilot:
        await answered(pilot)
        await settled(pilot)
        user = app.chat.transcript.query_one(".user")
        before = user.region.y
        assert before > 10, "the conversation begins at the bottom"
        assert ("n", "Next") not in keys(app)
        await pilot.press("ctrl+f", *"path")
        await wait_until(pilot, lambda: app.chat.query_one(FindBar).found > 0)
        await settled(pilot)
        assert ("Enter", "Go to matches") in keys(app)
        assert user.region.y == before - 1, "the line of what is looked for took a row, and no more moved"
        await pilot.press("enter")
        await settled(pilot)
        assert keys(app)[:2] == [("n", "Next"), ("N", "Previous")]
        await pilot.press("n")
        await settled(pilot)
        assert user.region.y == before - 1
        await pilot.press("escape")
        await wait_until(pilot, lambda: user.region.y == before)
        assert ("n", "Next") not in keys(app)


@pytest.mark.parametrize("columns", [60, full(80), 200])
async def test_help_has_two_columns_at_every_width(make_app: MakeApp, columns: int) -> None:
    app = make_app()
    async with app.run_test(size=(columns, 400)) as pilot:
        await answered(pilot)
        app.push_screen(HelpScreen())
        await shows(pilot, "In a slider")
        await settled(pilot)
        page = app.screen.query_one("#help-page")
        assert page.size.height
        lines = [page.render_line(y).text.rstrip() for y in range(page.size.height)]
        headings = ("Keys", "Commands", "In a slider")
        body = [line for line in lines[lines.index("Keys") :] if line and line not in headings]
        for line in body[:-1]:
            if line.startswith("•"):
                break
            assert line.startswith(" "), f"{line!r} is what did not fit in the line above"
            assert line[NAMES - 1 : NAMES] in ("", " ") or len(line.split("  ")[0].strip()) > NAMES - 2, line


async def test_a_wide_terminal_does_not_stretch_the_palette_or_a_curve(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(200, 60)) as pilot:
        await answered(pilot)
        app.push_screen(Palette(id="--command-palette"))
        await pilot.pause()
        await pilot.press("s", "t")
        await shows(pilot, "Stats")
        assert app.screen.query_one(CommandList).region.width <= 100
        await shows(pilot, "❯")
        app.pop_screen()
        await SHOWN["sweep"](app, pilot)
        await settled(pilot)
        curve = app.screen.query_one(CurveView).region
        assert 0 < curve.width <= 104
        assert 0 < curve.height <= 20


async def test_dialogs_have_one_frame_and_their_heading_on_one_line(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await answered(pilot)
        app.push_screen(TextScreen("A", "b"))
        await shows(pilot, "A   Esc closes")
        app.pop_screen()
        app.push_screen(LineScreen("A name", "tuned"))
        await shows(pilot, "A name")
        assert not any(edge for edge, _ in app.screen.query_one(Input).styles.border)
        assert app.screen.query_one(Input).size.height == 1


async def test_a_sweep_that_is_to_be_typed_shows_what_can_be(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await answered(pilot)
        for page in (SweepScreen(app.chat.parts), ABScreen(app.chat.parts)):
            app.push_screen(page)
            await shows(pilot, *(what[:30] for _, what in (*page.EXAMPLES, *page.OPTIONS)))
            page.dismiss()
            await pilot.pause()
        await SHOWN["sweep"](app, pilot)
        await settled(pilot)
        assert not app.screen.query_one("#lab-examples").display, "results are not under a page of help"
    for example, _ in (*SweepScreen.EXAMPLES, *SweepScreen.OPTIONS):
        options = example.startswith(("repeats", "prompts"))
        parse_sweep(f"budget=4,8 {example}" if options else example or "budget=4..63")
    for example, _ in (*ABScreen.EXAMPLES, *ABScreen.OPTIONS):
        assert app.chat.state.session is not None
        options = example.startswith(("repeats", "prompts"))
        parse_ab(f"budget=41 {example}" if options else example, app.chat.state.knobs, app.chat.state.session.limits)


@pytest.mark.parametrize("screen", [SweepScreen, ABScreen, TuneScreen])
def test_examples_stand_in_their_own_column(screen: type[ExperimentScreen]) -> None:
    """Regression: `drafting=treeone setting against another`."""
    assert all(len(example) < EXAMPLE for example, _ in (*screen.EXAMPLES, *screen.OPTIONS))


async def test_what_was_found_before_is_said_once(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(200, 60)) as pilot:
        await answered(pilot)
        await SHOWN["past"](app, pilot)
        await settled(pilot)
        assert screen_text(app).count("9 of 10 paired runs") == 1


async def test_turns_that_the_model_no_longer_sees_can_be_read_and_are_marked(make_app: MakeApp) -> None:
    turns = [(f"question {number}", f"answer {number}") for number in range(3)]
    async with talking(make_app, *turns, size=(80, 40)) as (app, pilot, _):
        await app.chat.parts.conversation.leave_out(2)
        await shows(pilot, "the model no longer sees the 2 turns above")
        for theme in THEMES:
            app.theme = theme
            await settled(pilot)
            texts = [(text, contrast(color, ground)) for text, color, ground in cells(app)]
            assert any("question 0" in text for text, _ in texts)
            assert not [(text, ratio) for text, ratio in texts if ratio < READABLE]
        shown = screen_text(app).splitlines()
        marked = [row[:2].strip() != "" for row in shown for text, _ in turns if text in row and "❯" in row]
        assert marked == [True, True, False], "a sign, for screens without colours"


async def test_a_long_line_of_code_is_read_to_its_end(make_app: MakeApp) -> None:
    """Regression: it was cut at the edge, and no key and no sign led to the rest."""
    code = f"value = [{', '.join(map(str, range(60)))}]"
    async with talking(make_app, ("code", f"```python\n{code}\n```"), size=(80, 40)) as (app, _, _):
        rows = [row.strip(" ▌") for row in screen_text(app).splitlines()]
        assert code in " ".join(rows)
        app.screen.text_select_all()
        assert code in (app.screen.get_selected_text() or "").splitlines(), "it is one line of what is copied"
