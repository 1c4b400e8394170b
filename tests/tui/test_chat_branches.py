"""Versions of answers and messages: edited, compared, left, and continued."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from dflash_core.errors import ContextError, DFlashError
from dflash_tui.app import DFlashApp
from dflash_tui.chat import conversation
from dflash_tui.screens.chats import ChatsScreen
from dflash_tui.widgets import transcript

from .fake import FakeSession
from .support import ask, contents, idle, loaded, says, screen_text, shows, smallest, talking, wait_until

MakeApp = Callable[..., DFlashApp]
Size = tuple[int, int]


@smallest
async def test_versions_of_an_answer_and_what_follows_them(make_app: MakeApp, size: Size) -> None:
    async with talking(make_app, ("one", "first"), size=size) as (app, pilot, session):
        session.answer = "second"
        await pilot.press("ctrl+r")
        await idle(pilot)
        await shows(pilot, "second", "‹2/2›")
        await pilot.press("alt+left")
        await shows(pilot, "first", "‹1/2›", "version 1 of 2", "answer 2/2")
        assert contents(session) == ["one", "first"]
        await says(pilot, session, "two", "behind the first")
        await pilot.press("alt+right")
        await shows(pilot, "version 2 of 2")
        assert contents(session) == ["one", "second"]
        assert "behind the first" not in screen_text(app)
        await pilot.press("alt+right")
        await shows(pilot, "no other version in that direction")
        await pilot.press("alt+left")
        await shows(pilot, "❯ two", "behind the first")
        assert contents(session) == ["one", "first", "two", "behind the first"]
        assert [block.prompt for block in app.chat.transcript.turns] == ["one", "two"]


@smallest
async def test_an_edited_message_is_a_version_beside_the_old_one(make_app: MakeApp, size: Size) -> None:
    async with talking(make_app, ("one", "answer one"), ("two", "answer two"), size=size) as (app, pilot, session):
        await pilot.press("alt+e")
        assert app.chat.prompt.text == "two"
        await says(pilot, session, " better", "answer better")
        await shows(pilot, "❯ two better", "‹2/2›", "answer better")
        assert contents(session) == ["one", "answer one", "two better", "answer better"]
        assert "answer two" not in screen_text(app)
        await pilot.press("alt+left")
        await shows(pilot, "❯ two", "‹1/2›", "answer two")
        assert contents(session) == ["one", "answer one", "two", "answer two"]
        await pilot.press("alt+up", "alt+up", "alt+up", "alt+up", "alt+e")
        assert app.chat.prompt.text == "one"
        app.chat.prompt.text = "another beginning"
        session.answer = "of another"
        await pilot.press("enter")
        await idle(pilot)
        await wait_until(pilot, lambda: contents(session) == ["another beginning", "of another"])
        await shows(pilot, "❯ another beginning", "‹2/2›")
        await wait_until(pilot, lambda: len(app.chat.transcript.turns) == 1)
        await pilot.press("alt+left")
        await shows(pilot, "❯ one", "❯ two", "answer two")


async def test_the_oldest_message_with_widgets_is_edited(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcript, "SHOWN", 2)
    async with talking(make_app, ("one", "answer one"), ("two", "answer two")) as (app, pilot, session):
        await pilot.press("alt+up", "alt+up", "alt+up", "alt+up", "alt+e")
        assert app.chat.prompt.text == "one"
        await says(pilot, session, " better", "answer better")
        assert contents(session) == ["one better", "answer better"]
        await shows(pilot, "❯ one better", "‹2/2›")
        assert not app.chat.transcript.earlier.texts, "the version that it replaces is not above it"
        for text in ("three", "four"):
            await says(pilot, session, text, f"answer {text}")
        await wait_until(pilot, lambda: [one.prompt for one in app.chat.transcript.turns] == ["three", "four"])
        assert app.chat.transcript.earlier.texts == ["> one better\n\nanswer better"]


async def test_a_long_branch_is_below_the_turns_that_it_follows(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = [(text, f"answer {text}") for text in ("one", "two", "three", "four", "five")]
    async with talking(make_app, *turns) as (app, pilot, session):
        await pilot.press(*["alt+up"] * 8, "alt+e")
        assert app.chat.prompt.text == "two"
        await says(pilot, session, " other", "answer other")
        await wait_until(pilot, lambda: [one.prompt for one in app.chat.transcript.turns] == ["one", "two other"])
        for module in (transcript, conversation):
            monkeypatch.setattr(module, "SHOWN", 2)
        await pilot.press("alt+left")
        await shows(pilot, "version 1 of 2")
        assert [one.prompt for one in app.chat.transcript.turns] == ["four", "five"]
        assert app.chat.transcript.earlier.texts == [f"> {text}\n\n{answer}" for text, answer in turns[:3]]


async def test_escape_leaves_an_edit(make_app: MakeApp) -> None:
    session = FakeSession()
    app = make_app(session)
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await pilot.press("alt+e")
        await shows(pilot, "no message to edit yet")
        await says(pilot, session, "one", "answer one")
        await pilot.press(*"typed", "alt+e", "escape")
        await shows(pilot, "the message stays as it is")
        await pilot.press("up")
        assert app.chat.prompt.text == "typed"
        app.chat.prompt.text = ""
        await pilot.press("alt+e", "escape")
        assert app.chat.prompt.text == ""
        await says(pilot, session, "two", "answer two")
        assert contents(session) == ["one", "answer one", "two", "answer two"]


async def test_a_message_queued_behind_an_edited_one_is_answered(make_app: MakeApp) -> None:
    async with talking(make_app, ("one", "an answer"), ("two", "an answer")) as (app, pilot, session):
        session.gate = threading.Semaphore(1)
        await pilot.press("alt+up", "alt+up", "alt+up", "alt+up", "alt+e")
        await ask(pilot, " more")
        await ask(pilot, "queued")
        await shows(pilot, "❯ one more", "queued: it is sent after this answer")
        session.gate.release(1000)
        await wait_until(pilot, lambda: contents(session) == ["one more", "an answer", "queued", "an answer"])
        await idle(pilot)
        await wait_until(pilot, lambda: [one.prompt for one in app.chat.transcript.turns] == ["one more", "queued"])


@pytest.mark.parametrize("fails", [False, True], ids=["by its key", "as the load fails"])
async def test_a_queued_edit_that_is_taken_back_is_still_a_version(make_app: MakeApp, fails: bool) -> None:
    session, waits, loads = FakeSession(), threading.Event(), []

    def load(progress: Callable[[str, float], None]) -> FakeSession:
        loads.append(len(loads))
        if len(loads) == 2:
            waits.wait()
            if fails:
                raise DFlashError("no such file")
        return session

    app = make_app(load=load)
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await says(pilot, session, "one", "answer one")
        await says(pilot, session, "two", "answer two")
        app.chat.parts.program.reload()
        await pilot.press("alt+e")
        await ask(pilot, " better")
        await shows(pilot, "queued: it is sent when the model is ready")
        assert "answer two" not in screen_text(app)
        if not fails:
            await pilot.press("alt+e")
        waits.set()
        await loaded(pilot)
        await wait_until(pilot, lambda: app.chat.prompt.text == "two better")
        await shows(pilot, "❯ two", "answer two")
        await pilot.press("enter")
        await wait_until(pilot, lambda: contents(session)[2:] == ["two better", "answer two"])
        await idle(pilot)
        await shows(pilot, "‹2/2›")
        await wait_until(pilot, lambda: [one.prompt for one in app.chat.transcript.turns] == ["one", "two better"])


async def test_an_edit_whose_answer_never_begins_has_taken_the_place_of_the_old_version(make_app: MakeApp) -> None:
    """The conversation contains the edited message, so the screen does too, and it is not put back into the prompt."""
    session = FakeSession()
    app = make_app(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await ask(pilot, "first")
        await idle(pilot)
        await pilot.press("alt+e")
        session.fail_after = -1
        await pilot.press("x", "enter")
        await shows(pilot, "✗ the device was lost in mid-step")
        await idle(pilot)
        [block] = app.chat.transcript.turns
        assert block.prompt == "firstx"
        assert [node.content for node in app.chat.state.conversation.branches.path] == ["firstx", ""]
        assert app.chat.prompt.text == ""
        session.fail_after = None
        await pilot.press("ctrl+r")
        await wait_until(pilot, lambda: len(block.answers) == 2)
        await idle(pilot)
        assert [one.role for one in session.conversation.messages] == ["user", "assistant"]


async def test_an_edit_that_is_refused_leaves_everything_as_it_was(make_app: MakeApp) -> None:
    async with talking(make_app, ("one", "answer one"), ("two", "answer two")) as (app, pilot, session):
        session.refuse = ContextError("too long for the context")
        await pilot.press("alt+up", "alt+up", "alt+up", "alt+up", "alt+e")
        assert app.chat.prompt.text == "one"
        app.chat.prompt.text = "far too long"
        await pilot.press("enter")
        await idle(pilot)
        await shows(pilot, "positions of context")
        await pilot.press("escape")
        await shows(pilot, "answer one", "❯ two", "answer two")
        assert contents(session) == ["one", "answer one", "two", "answer two"]
        assert app.chat.prompt.text == "far too long"
        session.refuse = None
        session.answer = "in its place"
        await pilot.press("enter")
        await wait_until(pilot, lambda: contents(session) == ["far too long", "in its place"])
        await shows(pilot, "‹2/2›", "in its place")
        assert "answer two" not in screen_text(app)
        await pilot.press("alt+left")
        await shows(pilot, "❯ one", "answer one", "❯ two", "answer two")


async def test_a_branch_cannot_be_left_while_it_is_written(make_app: MakeApp) -> None:
    session = FakeSession(gate=threading.Semaphore(2))
    app = make_app(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await ask(pilot, "one")
        for key in ("alt+left", "alt+e"):
            await pilot.press(key)
            await shows(pilot, "an answer is being written: Esc stops it first")
            await pilot.press("x")
        await pilot.press("ctrl+o")
        await wait_until(pilot, lambda: isinstance(app.screen, ChatsScreen))
        await pilot.press("enter", "d", "n")
        await pilot.pause()
        assert isinstance(app.screen, ChatsScreen)
        assert session.gate is not None
        session.gate.release(1000)
        await idle(pilot)
