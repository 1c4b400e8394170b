"""What is where at which size, the drawer, the smallest terminal, no colour."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from textual.color import Color

from dflash_tui.app import DFlashApp

from .fake import FakeSession
from .support import ask, idle, loaded, screen_text, shows, wait_until

MakeApp = Callable[..., DFlashApp]


@pytest.mark.parametrize(
    ("key", "text"), [("f2", "Next turn"), ("f3", "No turn yet"), ("f4", "no step yet"), ("f5", "NVIDIA H200")]
)
async def test_a_drawer_at_80x24(make_app: MakeApp, key: str, text: str) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        assert text not in screen_text(app)
        await pilot.press(key)
        await shows(pilot, text)
        assert app.chat.has_class("-drawer")
        await pilot.press("escape")
        await wait_until(pilot, lambda: text not in screen_text(app))
        assert app.focused is app.chat.prompt
        await pilot.press(key)
        await shows(pilot, text)
        await pilot.press(key)
        await wait_until(pilot, lambda: not app.chat.has_class("-drawer"))


async def test_the_inspector_hides_at_120x40(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await shows(pilot, "‹Stats›")
        await pilot.press("ctrl+b")
        await wait_until(pilot, lambda: "Stats›" not in screen_text(app))
        assert app.chat.transcript.size.width > 110
        await pilot.press("f12")
        await shows(pilot, "‹Stats›")
        await pilot.press("f4")
        await shows(pilot, "‹Tree›")


async def test_all_panels_at_200x60(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(200, 60)) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await idle(pilot)
        await shows(pilot, "Next turn", "Last turn", "nodes", "measured")


async def test_tabs_by_keys_and_mouse(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        tabs = app.chat.query_one("#tabs")
        await pilot.click(tabs, offset=(2, 0))
        await shows(pilot, "‹Params›")
        tabs.focus()
        await pilot.press("left")
        await shows(pilot, "‹Memory›")


@pytest.mark.parametrize("size", [(39, 24), (80, 11), (10, 3)])
async def test_too_small_a_terminal_says_so(make_app: MakeApp, size: tuple[int, int]) -> None:
    app = make_app()
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        assert "40x12" in screen_text(app) or size == (10, 3)
        assert "Ask anything" not in screen_text(app)
        await pilot.resize_terminal(80, 24)
        await shows(pilot, "Ask anything")


@pytest.mark.parametrize("size", [(40, 12), (50, 16)])
async def test_the_smallest_terminal_can_chat(make_app: MakeApp, size: tuple[int, int]) -> None:
    app = make_app(FakeSession(answer="Short answer."))
    async with app.run_test(size=size) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await idle(pilot)
        await shows(pilot, "Short answer.")
        await pilot.press("f2")
        await shows(pilot, "tree budget")


async def test_no_line_is_wider_than_the_screen(make_app: MakeApp) -> None:
    from rich.cells import cell_len

    session = FakeSession(answer="宽 " * 60 + "`code` " * 40, title="名前" * 40)
    app = make_app(session)
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await idle(pilot)
        await pilot.pause(0.3)
        assert all(cell_len(line) <= 80 for line in screen_text(app).splitlines())


async def test_without_color(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        assert app.no_color
        await loaded(pilot)
        await ask(pilot, "hi")
        await idle(pilot)
        await pilot.press("f4")
        await shows(pilot, "✓", "✗", "‹Tree›")
        await pilot.press("f2", "right")
        # A set budget is the most that auto takes: two parameters.
        await shows(pilot, "▸•tree budget", "‹off›", "•tree 23", "• 2 changed")
        for strip in app.screen._compositor.render_strips():
            for segment in strip.apply_filter(app._filters[-1], Color(0, 0, 0)):
                color = segment.style.color if segment.style else None
                if color is not None and color.triplet is not None:
                    assert len(set(color.triplet)) == 1, f"{segment.text!r} is colored"


async def test_the_user_may_scroll_back_while_text_arrives(make_app: MakeApp) -> None:
    gate = threading.Semaphore(14)
    session = FakeSession(answer="\n\n".join(f"paragraph {number}" for number in range(40)), gate=gate)
    app = make_app(session)
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await shows(pilot, "paragraph 12")
        await pilot.press("pageup")
        await pilot.pause()
        at = app.chat.transcript.scroll_y
        gate.release(1000)
        await idle(pilot)
        assert app.chat.transcript.scroll_y <= at
        await pilot.press("end")
        await shows(pilot, "paragraph 39")
