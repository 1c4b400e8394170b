"""Frames that nobody sees are left out, but not the faults of drawing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from textual.app import App, ComposeResult, RenderResult
from textual.screen import Screen
from textual.widget import Widget

from dflash_tui.app import DFlashApp
from dflash_tui.widgets.strip import TitleRow

from .support import screen_text


class Figure(Widget):
    text, broken = "one", False

    def render(self) -> RenderResult:
        return str(1 // 0) if self.broken else self.text


class Page(Screen[None]):
    def compose(self) -> ComposeResult:
        yield Figure()


@pytest.mark.parametrize("when", ["at once", "later"])
async def test_a_screen_that_cannot_be_drawn_is_found_though_nobody_reads_it(
    monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    monkeypatch.setattr(Figure, "broken", when == "at once")
    monkeypatch.setattr(App, "_fatal_error", App._close_messages_no_wait)  # without a report, which takes a second

    async def use() -> None:
        async with App[None]().run_test() as pilot:
            pilot.app.push_screen(Page())
            await pilot.pause()
            Figure.broken = True
            for figure in pilot.app.screen.query(Figure):
                figure.refresh()
            await pilot.pause()

    with pytest.raises(ZeroDivisionError):
        await use()


async def test_what_is_read_is_what_is_there() -> None:
    async with App[None]().run_test(size=(20, 3)) as pilot:
        await pilot.app.push_screen(Page())
        await pilot.pause()
        assert "one" in screen_text(pilot.app)
        for text in ("two", "three"):
            figure = pilot.app.screen.query_one(Figure)
            figure.text = text
            figure.refresh()
            await pilot.pause()
            assert text in screen_text(pilot.app)
            assert text in screen_text(pilot.app), "the second time, too"
        await pilot.resize_terminal(10, 2)
        assert screen_text(pilot.app).splitlines() == ["three", ""]


@pytest.mark.parametrize("read", [False, True])
async def test_a_chat_that_nobody_reads_is_drawn_at_its_end(
    make_app: Callable[..., DFlashApp], monkeypatch: pytest.MonkeyPatch, read: bool
) -> None:
    async def use() -> None:
        async with make_app().run_test() as pilot:
            if read:
                screen_text(pilot.app)
            monkeypatch.setattr(TitleRow, "render", lambda self: 1 // 0)
            pilot.app.screen.query_one(TitleRow).refresh()
            await pilot.pause()

    with pytest.raises(ZeroDivisionError):
        await use()
