"""What is where at which size, the drawer, the smallest terminal, no colour."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from textual.color import Color
from textual.dom import DOMNode

from dflash_tui.app import DFlashApp
from dflash_tui.widgets.flash import Flash
from dflash_tui.widgets.inspector import TABS
from dflash_tui.widgets.markdown import Streamed
from dflash_tui.widgets.panels import Panel

from .fake import FakeSession
from .scenes import answered
from .support import ask, idle, loaded, screen_text, settled, shows, wait_until

MakeApp = Callable[..., DFlashApp]


async def test_a_drawer_at_80x24(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        for key, text in (("f2", "Next turn"), ("f3", "No turn yet"), ("f4", "no step yet"), ("f5", "NVIDIA H200")):
            assert text not in screen_text(app)
            await pilot.press(key)
            await shows(pilot, text)
            assert app.chat.has_class("-drawer"), key
            await pilot.press("escape")
            await wait_until(pilot, lambda text=text: text not in screen_text(app))
            assert app.focused is app.chat.prompt, key
            await pilot.press(key)
            await shows(pilot, text)
            await pilot.press(key)
            await wait_until(pilot, lambda: not app.chat.has_class("-drawer"))


async def test_the_inspector_hides_at_120x40(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await answered(pilot)
        await shows(pilot, "‹Stats›")
        await pilot.press("ctrl+b")
        await wait_until(pilot, lambda: "Stats›" not in screen_text(app))
        assert app.chat.transcript.size.width > 110
        await pilot.press("f12")
        await shows(pilot, "‹Stats›")
        await pilot.press("f4")
        await shows(pilot, "‹Tree›")


async def test_what_opens_or_closes_leaves_the_styles_of_messages(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long conversation has hundreds of widgets, and no rule for them depends on the layout."""
    app, styled = make_app(), list[DOMNode]()
    async with app.run_test(size=(80, 24)) as pilot:
        await answered(pilot)
        apply = app.stylesheet.apply
        monkeypatch.setattr(app.stylesheet, "apply", lambda node, **kw: styled.append(node) or apply(node, **kw))
        await pilot.press("f3")
        await shows(pilot, "‹Stats›")
        await pilot.resize_terminal(120, 40)
        await wait_until(pilot, lambda: not app.chat.has_class("-narrow"))
        app.app_focus = False  # another window
        app.app_focus = True
        await pilot.press("f1")
        await pilot.pause()
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.screen is app.chat)
        await pilot.pause()
        assert app.chat.transcript in styled
        assert not [node for node in styled if isinstance(node, Streamed)]


@pytest.mark.parametrize(("size", "shown"), [((120, 40), []), ((160, 50), []), ((200, 50), ["params", "memory"])])
async def test_panels_without_contents_take_no_place(
    make_app: MakeApp, size: tuple[int, int], shown: list[str]
) -> None:
    app = make_app()

    def seen() -> list[str]:
        return [name for name in TABS if app.chat.inspector.sees(name)]

    async with app.run_test(size=size) as pilot:
        await loaded(pilot)
        assert seen() == shown
        await pilot.press("f5")
        await pilot.pause()
        assert "memory" in seen(), "a key opens a panel at any time"
        await app.chat.parts.conversation.clear()
        app.chat.places.restore(({True: False, False: None}, "stats"))
        await answered(pilot)
        await wait_until(pilot, lambda: "stats" in seen())
        await pilot.press("ctrl+n")
        await wait_until(pilot, lambda: seen() == shown)


@pytest.mark.parametrize(("size", "shown"), [((80, 24), True), ((120, 40), False)])
async def test_whether_the_inspector_is_open_is_remembered(
    make_app: MakeApp, size: tuple[int, int], shown: bool
) -> None:
    for before, keys in ((not shown, ["ctrl+b"]), (shown, ["ctrl+b"]), (not shown, [])):
        app = make_app()
        async with app.run_test(size=size) as pilot:
            await answered(pilot)
            await wait_until(pilot, lambda app=app, before=before: bool(app.chat.inspector.region.area) == before)
            await pilot.press(*keys)
            await pilot.pause()


async def test_panels_without_tabs_of_their_own_name_their_keys(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(160, 50)) as pilot:
        await answered(pilot)
        for size, number in (((160, 50), 2), ((200, 60), 4)):
            await pilot.resize_terminal(*size)
            await wait_until(pilot, lambda number=number: len(shown_panels(app)) == number)
            await shows(pilot, *(f" {panel.border_title} ─╮" for panel in shown_panels(app)))
            await pilot.resize_terminal(120, 40)
            await wait_until(pilot, lambda: not any(panel.border_title for panel in app.chat.query(Panel)))


def shown_panels(app: DFlashApp) -> list[Panel]:
    return [panel for panel in app.chat.query(Panel) if panel.region.area]


async def test_prose_is_as_wide_as_is_read_with_ease(make_app: MakeApp) -> None:
    code = "x" * 120
    app = make_app(FakeSession(answer="word " * 200 + f"\n\n```\n{code}\n```\n", thinking=""))
    async with app.run_test(size=(80, 24)) as pilot:
        await answered(pilot)
        for size, most in (((80, 24), 77), ((120, 40), 68), ((160, 50), 100), ((240, 50), 100)):
            await pilot.resize_terminal(*size)
            await settled(pilot)
            prose = [row for row in screen_text(app).splitlines() if row.lstrip().startswith("word")]
            widest = max(len(row.split("│")[0].split("╭")[0].strip()) for row in prose)
            assert most - 5 <= widest <= most, size
        assert code in screen_text(app)


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
        await answered(pilot)
        tabs = app.chat.query_one("#tabs")
        await pilot.click(tabs, offset=(2, 0))
        await shows(pilot, "‹Params›")
        tabs.focus()
        await pilot.press("left")
        await shows(pilot, "‹Memory›")


async def test_too_small_a_terminal_says_so(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(39, 24)) as pilot:
        for size in ((39, 24), (80, 11), (10, 3)):
            await pilot.resize_terminal(*size)
            await wait_until(pilot, lambda: "Ask anything" not in screen_text(app))
            assert "40x12" in screen_text(app) or size == (10, 3)
            await pilot.resize_terminal(80, 24)
            await shows(pilot, "Ask anything")


async def test_a_terminal_that_is_large_again_has_the_focus_in_the_prompt(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await pilot.resize_terminal(30, 8)
        await shows(pilot, "This terminal is 30x8")
        await pilot.resize_terminal(120, 40)
        await wait_until(pilot, lambda: app.focused is app.chat.prompt)


@pytest.mark.parametrize("size", [(40, 12), (50, 16)])
async def test_the_smallest_terminal_can_chat(make_app: MakeApp, size: tuple[int, int]) -> None:
    app = make_app(FakeSession(answer="Short answer."))
    async with app.run_test(size=size) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await idle(pilot)
        await shows(pilot, "Short answer.")
        await pilot.press("f2")
        await shows(pilot, "drafting")


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
        await pilot.press("f2", "space", "space", "right")
        await shows(pilot, "▸•drafting", "‹off›", "•tree 23", "• 1 changed")
        for strip in app.screen._compositor.render_strips():
            for segment in strip.apply_filter(app._filters[-1], Color(0, 0, 0)):
                color = segment.style.color if segment.style else None
                if color is not None and color.triplet is not None:
                    assert len(set(color.triplet)) == 1, f"{segment.text!r} is colored"


async def test_a_panel_that_a_new_size_hides_loses_the_focus(make_app: MakeApp) -> None:
    """Regression: letters went to rows that nobody saw."""
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await pilot.press("f2")
        await shows(pilot, "Next turn")
        await pilot.press("m")
        await shows(pilot, "▼ fewer")
        await pilot.resize_terminal(130, 45)
        await wait_until(pilot, lambda: "Next turn" not in screen_text(app))
        await settled(pilot)
        assert app.focused is app.chat.prompt
        await pilot.press("m")
        await wait_until(pilot, lambda: app.chat.prompt.text == "m")


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


async def test_a_notice_covers_no_panel(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await answered(pilot)
        await pilot.press("f4")
        for size in ((80, 24), (120, 40), (160, 50), (210, 50)):
            await pilot.resize_terminal(*size)
            app.chat.say("the file has no chat template, so that plain ChatML is used for every message " * 2)
            await settled(pilot)
            notice = app.chat.query_one(Flash).region
            assert notice.area, size
            panels = [panel.region for panel in shown_panels(app)]
            assert panels, size
            assert not [panel for panel in panels if panel.overlaps(notice)], size
