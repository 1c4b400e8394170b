"""The place of text: not on the scrollbar, in the middle of a wide terminal, and removed when it no longer applies."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from textual.containers import VerticalScroll

from dflash_core.knobs import Knobs
from dflash_tui.app import DFlashApp
from dflash_tui.screens.lab import LabScreen
from dflash_tui.text.step_text import drawn, legend
from dflash_tui.widgets.answer import flowed
from dflash_tui.widgets.literal import Static
from support.grids import full
from support.turns import step_of, tree_of

from .fake import FakeSession
from .gallery import SHOWN
from .scenes import answered
from .support import SIZES, leave, loaded, screen_text, settled, shows, wait_until

MakeApp = Callable[..., DFlashApp]


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_text_keeps_a_cell_off_the_scrollbar(make_app: MakeApp, size: tuple[int, int]) -> None:
    app = make_app(FakeSession(answer="word " * 600))
    async with app.run_test(size=size) as pilot:
        await answered(pilot)
        if size[0] == 80:
            await pilot.press("f3")
        await settled(pilot)
        await wait_until(pilot, lambda: app.chat.transcript.show_vertical_scrollbar)
        for scroll in (app.chat.transcript, app.chat.query_one("#panel-stats VerticalScroll", VerticalScroll)):
            bar = scroll.region.right - scroll.scrollbar_size_vertical
            inside = [one for one in scroll.children if one.display]
            assert inside
            assert all(one.content_region.right <= bar - 1 for one in inside), scroll


@pytest.mark.parametrize("size", [SIZES[0], full(SIZES[1]), full(SIZES[2])])
async def test_parts_of_a_page_of_the_lab_stand_together(make_app: MakeApp, size: tuple[int, int]) -> None:
    """The verdict on results is right below them, and a curve is not at the table's edge."""
    app = make_app()
    async with app.run_test(size=size) as pilot:
        await answered(pilot)
        for name, note in (("sweep", "24 runs"), ("sweep-field", "96 runs"), ("whatif", "ms timed at")):
            await SHOWN[name](app, pilot)
            await shows(pilot, note)
            rows = (await settled(pilot)).splitlines()
            place = next(place for place, row in enumerate(rows) if note in row)
            above = [bool(row.strip()) for row in rows[place - 2 : place]]
            assert any(above), (name, rows)
            if size == (80, 24) and name != "whatif":
                [title] = [place for place, row in enumerate(rows) if row.startswith((" tok/s by", " tok/s: tree"))]
                assert not rows[title - 1].strip(), name
            await leave(pilot)


async def test_a_low_terminal_has_no_title_over_nothing_and_keeps_its_margin(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(60, 18)) as pilot:
        await answered(pilot)
        await SHOWN["sweep"](app, pilot)
        await shows(pilot, "24 runs")
        assert "tok/s by tree budget" not in await settled(pilot)
        await leave(pilot)
        await SHOWN["steps"](app, pilot)
        await shows(pilot, "temperature 0.00")
        about = app.screen.query_one("#steps-about").region
        rows = (await settled(pilot)).splitlines()[about.y : about.bottom]
        assert len(rows) > 5, "some are broken"
        assert all(row.startswith(" ") for row in rows), rows


async def test_what_was_measured_before_has_its_time(make_app: MakeApp) -> None:
    """Regression: the time was in UTC."""
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await answered(pilot)
        await SHOWN["past"](app, pilot)
        await wait_until(pilot, lambda: re.search(r"(just now|\d min ago)  ", screen_text(app)) is not None)
        assert datetime.now(UTC).strftime("%Y-%m-%d") not in screen_text(app)


PAGES = ("past", "plain", "sweep", "ab", "tune", "whatif")


@pytest.mark.parametrize("pages", [PAGES[::2], pytest.param(PAGES, marks=pytest.mark.full)], ids=["some", "all"])
async def test_a_wide_terminal_has_the_pages_of_the_lab_in_its_middle(
    make_app: MakeApp, pages: tuple[str, ...]
) -> None:
    app = make_app()
    async with app.run_test(size=(200, 60)) as pilot:
        await loaded(pilot)
        for name in pages:
            app.chat.open_page(name)
            await wait_until(pilot, lambda: isinstance(app.screen, LabScreen))
            screen = app.screen
            assert isinstance(screen, LabScreen)
            await wait_until(pilot, lambda screen=screen: screen.query_one(".lab-column").size.width == screen.WIDTH)
            column = screen.query_one(".lab-column").region
            assert abs(column.x - (200 - column.right)) <= 1, name
            assert column.x >= 10, name
            assert screen.query_one(".lab-heading").region.width == 200
            await pilot.resize_terminal(120, 40)
            await wait_until(pilot, lambda screen=screen: screen.query_one(".lab-column").size.width == 120)
            await pilot.resize_terminal(200, 60)
            await leave(pilot)


async def test_the_help_of_a_parameter_goes_with_the_focus(make_app: MakeApp) -> None:
    app = make_app()

    def told() -> str:
        return str(app.chat.query_one("#params-help", Static).visual)

    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await pilot.press("f2")
        await wait_until(pilot, lambda: "draft tokens" in told())
        await pilot.press("down")
        await wait_until(pilot, lambda: "draft tokens" not in told() and bool(told()))
        await pilot.press("escape")
        await wait_until(pilot, lambda: told() == "")


def test_the_line_under_an_answer_is_broken_before_a_figure() -> None:
    figures = ["257 tok/s · 130 tok · 4.8 tok/step · budget 24, p_min 0 · tree · ‹2/2›"]
    for width in range(12, 70):
        lines = flowed(figures, width).plain.splitlines()
        assert not any(line.endswith("·") or line.startswith("·") for line in lines), lines
        assert sum(len(line.split(" · ")) for line in lines) == 6


def test_the_legend_names_the_marks_of_this_tree() -> None:
    tree = tree_of((0, 0), (1, 0), (0, 1), accepted=(0, 1))
    step = step_of(tree, knobs=Knobs())
    assert legend(step, left_out=False, taken_only=False) == "✓ taken  ✗ not taken"
    assert legend(step, left_out=False, taken_only=True) == "✓ taken"
    chain = replace(
        step_of(tree_of((0, 0), accepted=(0,)), bonus=2, knobs=Knobs(drafting="auto up to 1")), mode="chain"
    )
    assert "◆c" in drawn(chain, str, 40, left_out=True).plain
    assert "c no place in a chain" in legend(chain, left_out=True, taken_only=False)
    whole = tree_of((0, 0), accepted=(0, 1))
    assert "not taken" not in legend(step_of(whole, knobs=Knobs()), left_out=False, taken_only=False)
