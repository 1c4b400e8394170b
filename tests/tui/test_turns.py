"""The life of a turn in the app, at three sizes: type, stream, stop, retry, tune, resize."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from textual.containers import VerticalScroll
from textual.events import Key

from dflash_core.knobs import Knobs
from dflash_tui.app import DFlashApp
from dflash_tui.widgets import transcript
from dflash_tui.widgets.slider import Slider

from .fake import ANSWER, FakeSession
from .support import ask, idle, loaded, screen_text, shows, smallest, wait_until

MakeApp = Callable[..., DFlashApp]
Size = tuple[int, int]


def gated(steps: int = 0, **script: object) -> FakeSession:
    """A session that makes one step per release of its gate."""
    return FakeSession(gate=threading.Semaphore(steps), **script)  # type: ignore[arg-type]


@smallest
async def test_type_and_stream(make_app: MakeApp, size: Size) -> None:
    session = gated(8)
    app = make_app(session)
    async with app.run_test(size=size) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        assert session.conversation.messages[0].content == "hi"
        assert app.chat.prompt.text == ""
        await wait_until(pilot, lambda: "Speculative decoding" in screen_text(app))
        assert app.chat.state.busy
        assert app.chat.query_one("#prompt-row").has_class("-busy")
        await wait_until(pilot, lambda: "tok/step  │ auto" in screen_text(app))
        assert session.gate is not None
        session.gate.release(1000)
        await idle(pilot)
        tokens = app.chat.state.turn.report.stats.tokens  # type: ignore[union-attr]
        await shows(pilot, "but each verify pass gets slower", f"{tokens} tok · ", "tok/step · auto, p_min 0 · tree")
        answer = app.chat.transcript.answer
        assert answer is not None
        assert answer.text == ANSWER
        assert answer.inside.size.height == answer.body.outer_size.height + answer.footer.size.height, (
            "nothing is cut off"
        )


@smallest
async def test_stop_keeps_the_text(make_app: MakeApp, size: Size) -> None:
    session = gated(6)
    app = make_app(session)
    async with app.run_test(size=size) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await wait_until(pilot, lambda: "Speculative" in screen_text(app))
        await pilot.press("escape")
        await idle(pilot)
        answer = app.chat.transcript.answer
        assert answer is not None
        assert answer.text
        assert ANSWER.startswith(answer.text)
        assert answer.text == session.conversation.messages[-1].content
        await shows(pilot, "stopped")


@smallest
async def test_retry_keeps_the_earlier_answer(make_app: MakeApp, size: Size) -> None:
    session = FakeSession()
    app = make_app(session)
    async with app.run_test(size=size) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await idle(pilot)
        first = app.chat.transcript.answer
        assert first is not None
        session.answer = "Another answer."
        await pilot.press("ctrl+r")
        await idle(pilot)
        assert [prompt for prompt, _ in session.asked] == ["hi", "<retry>"]
        second = app.chat.transcript.answer
        assert second is not first
        await shows(pilot, "▶ answer 1/2", "Another answer.", "‹2/2›")
        assert "Speculative" not in screen_text(app)
        first.line.focus()
        await pilot.press("enter")
        await pilot.pause()
        assert "▼ answer 1/2" in screen_text(app) or first.inside.display
        assert first.text == ANSWER


@smallest
async def test_the_next_turn_uses_a_slider_moved_by_keys(make_app: MakeApp, size: Size) -> None:
    session = FakeSession()
    app = make_app(session)
    async with app.run_test(size=size) as pilot:
        await loaded(pilot)
        await pilot.press("f2")
        await pilot.pause()
        assert isinstance(app.focused, Slider)
        assert app.focused.spec.name == "drafting"
        await pilot.press("space", "space", "right", "right", "shift+right")
        await wait_until(pilot, lambda: "•tree 34" in screen_text(app))
        await ask(pilot, "hi")
        await idle(pilot)
        assert session.asked[-1][1] == Knobs(drafting="tree 34")
        await shows(pilot, "tree 34, p_min 0", "│ tree 34")
        assert "•drafting" not in screen_text(app)


@smallest
async def test_the_next_turn_uses_a_slider_moved_by_mouse(make_app: MakeApp, size: Size) -> None:
    session = FakeSession()
    app = make_app(session)
    async with app.run_test(size=size) as pilot:
        await loaded(pilot)
        await pilot.press("f2")
        slider = app.chat.query_one("#knob-p_min", Slider)
        await wait_until(pilot, lambda: slider.region.area > 0)
        await pilot.click(slider, offset=(slider.track[1] - 1, 0))
        await pilot.pause()
        assert app.chat.state.knobs.p_min == 1.0
        await ask(pilot, "hi")
        await idle(pilot)
        assert session.asked[-1][1].p_min == 1.0


async def test_a_change_during_a_turn_waits_for_the_next(make_app: MakeApp) -> None:
    session = gated(3)
    app = make_app(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await pilot.press("f2", "space", "space", "right")
        await wait_until(pilot, lambda: "•tree 23" in screen_text(app))
        assert session.asked[-1][1].budget == 22
        await shows(pilot, "• 1 changed; a applies now")
        assert session.gate is not None
        session.gate.release(1000)
        await idle(pilot)
        assert app.chat.transcript.answer.knobs.budget == 22  # type: ignore[union-attr]
        await shows(pilot, "•tree 23")


async def test_resize_while_streaming(make_app: MakeApp) -> None:
    session = FakeSession(pace=0.01)
    app = make_app(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        for width, height in ((80, 24), (39, 11), (200, 60), (60, 14), (120, 40)):
            await pilot.resize_terminal(width, height)
            await pilot.pause(0.05)
        await idle(pilot)
        assert app.chat.transcript.answer.text == ANSWER  # type: ignore[union-attr]
        await shows(pilot, "but each verify pass")


@smallest
async def test_thinking_is_counted_while_folded_and_shown_when_opened(make_app: MakeApp, size: Size) -> None:
    session = gated(2)
    app = make_app(session)
    async with app.run_test(size=size) as pilot:
        await loaded(pilot)
        await pilot.press("ctrl+t")
        assert app.chat.state.knobs.thinking
        await ask(pilot, "hi")
        await wait_until(pilot, lambda: "▶ thinking…" in screen_text(app))
        assert "First the idea" not in screen_text(app)
        assert session.gate is not None
        session.gate.release(1000)
        await idle(pilot)
        answer = app.chat.transcript.answer
        assert answer is not None
        assert answer.thinking.line.title.startswith("thought for ")
        assert answer.thinking.line.title.endswith(" tok")
        assert answer.text == ANSWER
        await pilot.press("alt+t")
        await pilot.pause()
        app.chat.transcript.scroll_home(animate=False)
        await wait_until(pilot, lambda: "First the idea" in screen_text(app))
        await pilot.click(answer.thinking.line)
        await wait_until(pilot, lambda: "First the idea" not in screen_text(app))
        answer.thinking.line.focus()
        await pilot.press("enter")
        await wait_until(pilot, lambda: answer.thinking.body.display)


async def test_a_message_sent_while_loading_waits_its_turn(make_app: MakeApp) -> None:
    session, ready = FakeSession(), threading.Event()

    def load(progress: Callable[[str, float], None]) -> FakeSession:
        progress("target weights", 0.42)
        ready.wait(600)
        return session

    app = make_app(load=load)
    async with app.run_test(size=(80, 24)) as pilot:
        await shows(pilot, "loading: target weights", "42%")
        await ask(pilot, "one")
        await ask(pilot, "two")
        await shows(pilot, "queued: it is sent when the model is ready")
        assert app.chat.prompt.text == ""
        ready.set()
        await wait_until(pilot, lambda: len(session.asked) == 2)
        await idle(pilot)
        assert [prompt for prompt, _ in session.asked] == ["one", "two"]
        assert "queued" not in screen_text(app)
        assert "loading" not in screen_text(app)


async def test_a_message_during_a_turn_waits_for_its_end(make_app: MakeApp) -> None:
    session = gated(2)
    app = make_app(session)
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await ask(pilot, "one")
        await ask(pilot, "two")
        assert app.chat.prompt.text == ""
        await shows(pilot, "queued: it is sent after this answer")
        assert len(session.asked) == 1
        await pilot.press("escape")
        await wait_until(pilot, lambda: len(session.asked) == 2)
        await pilot.press("escape")
        await idle(pilot)


@pytest.mark.parametrize("mode", ["plain", "chain", "tree"])
async def test_what_ran_is_what_is_shown(make_app: MakeApp, mode: str) -> None:
    app = make_app(FakeSession(), Knobs().replace(mode=mode))  # type: ignore[arg-type]
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await idle(pilot)
        await pilot.press("f3")
        await pilot.pause()
        name = "plain" if mode == "plain" else mode
        await shows(pilot, f"{name}: auto takes the tree for now", "accepted by depth")
        assert ("nothing drafted: plain decoding" in screen_text(app)) == (mode == "plain")


async def test_a_turn_goes_on_behind_the_help_page(make_app: MakeApp) -> None:
    session = gated(2)
    app = make_app(session)
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await pilot.press("f1")
        await shows(pilot, "Esc closes")
        assert session.gate is not None
        session.gate.release(1000)
        await idle(pilot)
        await pilot.press("escape")
        await shows(pilot, "but each verify pass gets slower", "auto, p_min 0 · tree")


async def test_a_retry_in_the_same_moment_as_a_message_loses_neither(make_app: MakeApp) -> None:
    """Keys are handled beside the screen's own messages: Ctrl+R arrives while Enter's message is put on the screen."""
    session = FakeSession()
    app = make_app(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await ask(pilot, "one")
        await idle(pilot)
        app.chat.prompt.text = "two"
        for key in ("enter", "ctrl+r", "ctrl+r"):
            app.post_message(Key(key, None))
        await wait_until(pilot, lambda: "two" in [prompt for prompt, _ in session.asked])
        await idle(pilot)
        await wait_until(pilot, lambda: not app.chat.state.waiting)
        assert [turn.prompt for turn in app.chat.transcript.turns] == ["one", "two"]
        assert all(answer.text == ANSWER for turn in app.chat.transcript.turns for answer in turn.answers)
        assert app.chat.transcript.turns[-1].answers


async def test_a_panel_that_begins_to_scroll_keeps_its_width(make_app: MakeApp) -> None:
    """Else what was drawn for the wider panel is broken over two rows."""
    app = make_app(FakeSession())
    async with app.run_test(size=(120, 26)) as pilot:
        await loaded(pilot)
        app.chat.places.show("stats")
        await pilot.pause()
        scroll = app.chat.inspector.stats_panel.query_one(VerticalScroll)
        assert not scroll.show_vertical_scrollbar
        width = scroll.scrollable_content_region.width
        await ask(pilot, "hi")
        await idle(pilot)
        await wait_until(pilot, lambda: scroll.show_vertical_scrollbar)
        assert scroll.scrollable_content_region.width == width


async def test_turns_long_past_become_plain_text_behind_one_line(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcript, "SHOWN", 2)
    app = make_app(FakeSession(answer="An *answer*."))
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        for word in ("one", "two", "three", "four"):
            await ask(pilot, word)
            await idle(pilot)
        await shows(pilot, "▶ 2 earlier turns", "❯ three", "❯ four")
        assert len(app.chat.query("TurnBlock")) == 2
        assert "> one" not in screen_text(app)
        assert [text.count("An *answer*.") for text in app.chat.transcript.earlier.texts] == [1, 1]
        await pilot.press("ctrl+r")
        await idle(pilot)
        await shows(pilot, "‹2/2›")
        app.chat.transcript.earlier.line.focus()
        await pilot.press("enter")
        app.chat.transcript.release_anchor()
        app.chat.transcript.scroll_home(animate=False)
        await shows(pilot, "▼ 2 earlier turns", "> one", "> two")
        await app.chat.action_clear()
        await pilot.pause()
        assert "earlier" not in screen_text(app)
        assert (app.chat.transcript.turns, app.chat.transcript.earlier.texts) == ([], [])
