"""The prompt: multi-line input, history, and nothing typed gets lost."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest
from textual.events import Key, Paste
from textual.widgets import Input

from dflash_core.errors import ContextError, DFlashError, TemplateError
from dflash_core.knobs import Knobs
from dflash_tui.app import DFlashApp
from dflash_tui.application.session import Progress
from dflash_tui.screens.full import FullScreen
from dflash_tui.terminal.key_order import PasteParser
from dflash_tui.widgets.dialogs import LineScreen
from dflash_tui.widgets.flash import Flash
from dflash_tui.widgets.knob_row import KnobRow
from dflash_tui.widgets.prompt import Prompt
from support.grids import full

from .fake import FakeSession
from .support import ask, idle, leave, loaded, shows, taken, talking, wait_until

MakeApp = Callable[..., DFlashApp]


@pytest.mark.parametrize("key", ["ctrl+j", "shift+enter"])
async def test_newline_and_growth(make_app: MakeApp, key: str) -> None:
    session = FakeSession()
    app = make_app(session)
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        prompt = app.chat.prompt
        assert prompt.size.height == 1
        await pilot.press("a", key, "b")
        await pilot.pause()
        assert prompt.text == "a\nb"
        assert prompt.size.height == 2
        for _ in range(8):
            await pilot.press(key)
        await pilot.pause()
        assert prompt.size.height == 6
        await pilot.press("enter")
        await idle(pilot)
        assert session.asked[0][0] == "a\nb" + "\n" * 8
        await pilot.pause()
        assert prompt.size.height == 1


@pytest.mark.parametrize("lines", [2, 7, 9, 40])
async def test_many_lines_go_and_come_by_undo_and_redo(make_app: MakeApp, lines: int) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        prompt, text = app.chat.prompt, "\n".join(["line"] * lines)
        prompt.insert(text)
        await pilot.pause()
        prompt.select_all()
        prompt.delete(*prompt.selection)
        await pilot.pause()
        await pilot.press("ctrl+z")
        await pilot.pause()
        assert prompt.text == text
        prompt.move_cursor((lines - 1, 0))
        await pilot.pause()
        await pilot.press("ctrl+y")  # what the cursor stood on goes, and the scrollbar with it
        await pilot.pause()
        assert prompt.text == ""


async def test_enter_on_an_empty_prompt_sends_nothing(make_app: MakeApp) -> None:
    session = FakeSession()
    app = make_app(session)
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await pilot.press("enter", "space", "enter")
        await pilot.pause()
        assert session.asked == []


async def test_a_paste_keeps_text_only(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        app.post_message(Paste("one\r\ntwo\rthree\x1b[31m\x07\tfour\x9b"))
        await wait_until(pilot, lambda: bool(app.chat.prompt.text))
        assert app.chat.prompt.text == "one\ntwo\nthree[31m\tfour"


async def test_paste_of_many_lines_is_one_message(make_app: MakeApp) -> None:
    session = FakeSession()
    app = make_app(session)
    text = "\n".join(f"line {number}" for number in range(500))
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        app.post_message(Paste(text))
        await pilot.pause()
        assert app.chat.prompt.text == text
        await pilot.press("enter")
        await idle(pilot)
        assert session.asked[0][0] == text


@pytest.mark.parametrize("turns", range(1, 9))
async def test_text_that_follows_a_key_stays_in_order_however_it_arrives(make_app: MakeApp, turns: int) -> None:
    app = make_app()
    typed = "abcdefghijklmnopqrstuvwxyz"
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        for one in typed:
            app.post_message(Key("end", None))
            app.post_message(Key(one, one))
            for _ in range(turns):  # so far the loop gets with the key before the next ones come
                await asyncio.sleep(0)
        await wait_until(pilot, lambda: len(app.chat.prompt.text) == len(typed))
        assert app.chat.prompt.text == typed


async def test_text_typed_elsewhere_goes_to_the_prompt(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        app.chat.transcript.focus()
        await pilot.press("h", "space", "i")
        assert app.chat.prompt.text == "h i"
        await pilot.press("f2")
        await pilot.pause()
        await pilot.press("3", "0", "enter")
        assert app.chat.state.knobs.budget == 30, "digits belong to a slider"
        await pilot.press("x")
        assert app.chat.prompt.text == "h ix"


@pytest.mark.parametrize("where", ["transcript", "slider"])
async def test_text_that_comes_fast_is_all_the_prompts(make_app: MakeApp, where: str) -> None:
    """As from a terminal that sends a burst: no key waits until the one before it has been handled."""
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        if where == "slider":
            await pilot.press("f2")
            await wait_until(pilot, lambda: isinstance(app.focused, KnobRow))
        else:
            app.chat.transcript.focus()
            await pilot.pause()
        text = "/set max_tokens 400"
        for character in text:
            app.post_message(Key(character if character.isalnum() else "unnamed", character))
        await wait_until(pilot, lambda: app.chat.prompt.text == text)
        assert app.chat.state.knobs == Knobs()


async def test_a_paste_goes_to_the_prompt_wherever_the_focus_is(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await pilot.press("f2")
        await wait_until(pilot, lambda: isinstance(app.focused, KnobRow))
        app.post_message(Paste("three\nlines\nof it"))
        await wait_until(pilot, lambda: app.chat.prompt.text == "three\nlines\nof it")
        assert app.focused is app.chat.prompt


@pytest.mark.parametrize("keys", [(), ("ctrl+f",), ("ctrl+o", "slash"), ("ctrl+o", "r")])
async def test_what_a_keyboard_sends_arrives_in_every_field(make_app: MakeApp, keys: tuple[str, ...]) -> None:
    """The prompt, two searches, and the dialog of a name: spaces of other scripts, joiners, a soft hyphen."""
    text = "a\u00a0\u3000\u2009\u200c\u200d\u00adb"
    async with talking(make_app, ("hi", "hey")) as (app, pilot, _):
        await pilot.press(*keys)
        if keys[-1:] == ("r",):
            await wait_until(pilot, lambda: isinstance(app.screen, LineScreen))
            app.screen.query_one(Input).value = ""
        for event in PasteParser().feed(text):
            app.post_message(event)
        field = app.focused
        assert isinstance(field, (Input, Prompt))
        await wait_until(pilot, lambda: (field.text if isinstance(field, Prompt) else field.value) == text)


def burst(app: DFlashApp, *parts: str) -> None:
    """As from a terminal that sends all of it at once: `⏎` is Enter, longer parts in brackets are pastes."""
    for part in parts:
        if part.startswith("["):
            app.post_message(Paste(part[1:-1]))
            continue
        for character in part:
            key = "enter" if character == "⏎" else character if character.isalnum() else "unnamed"
            app.post_message(Key(key, "\r" if character == "⏎" else character))


@pytest.mark.parametrize(
    ("parts", "asked", "left"),
    [
        (["alpha⏎beta"], ["alpha"], "beta"),
        (["alpha⏎", "[one\ntwo]"], ["alpha"], "one\ntwo"),
        full(["[one\ntwo]", "⏎", "[three]", "four"], ["one\ntwo"], "threefour"),
        full(["alpha⏎alpha"], ["alpha"], "alpha"),
        full(["alpha⏎beta⏎gamma"], ["alpha", "beta"], "gamma"),
        (["alpha⏎beta⏎gamma⏎delta"], ["alpha", "beta", "gamma"], "delta"),
        (["alpha⏎/nonsense⏎beta"], ["alpha"], "/nonsense\nbeta"),
        full(["/set budget 9⏎beta"], [], "beta"),
        (["/set budget 9⏎alpha⏎beta"], ["alpha"], "beta"),
        (["/set budget 999⏎beta"], [], "/set budget 999\nbeta"),
        full(["/nonsense⏎alpha"], [], "/nonsense\nalpha"),
    ],
)
async def test_what_is_typed_right_behind_enter_stays(
    make_app: MakeApp, parts: list[str], asked: list[str], left: str
) -> None:
    session = FakeSession(gate=threading.Semaphore(0))
    app = make_app(session)
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        burst(app, *parts)
        await wait_until(
            pilot,
            lambda: (
                app.chat.prompt.text == left
                and len(session.asked) == min(len(asked), 1)
                and [turn.prompt for turn in app.chat.transcript.turns] == asked
            ),
        )
        assert [prompt for prompt, _ in session.asked] == asked[:1], "the others are shown, and wait for its answer"
        for _ in range(3):
            await pilot.pause()
        assert app.chat.prompt.text == left
        session.gate.release(1000)  # type: ignore[union-attr]
        await wait_until(pilot, lambda: not app.chat.state.waiting and len(session.asked) == len(asked))
        await idle(pilot)
        assert [prompt for prompt, _ in session.asked] == asked
        assert app.chat.prompt.text == left
    again = make_app()
    async with again.run_test(size=(80, 24)) as pilot:
        await wait_until(pilot, lambda: again.chat.prompt.text == left)  # and is there at the next start


async def test_messages_that_still_wait_at_the_end_come_back_at_the_next_start(make_app: MakeApp) -> None:
    session = FakeSession(gate=threading.Semaphore(0))
    app = make_app(session)
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        burst(app, "alpha⏎beta⏎gamma⏎delta")
        await wait_until(pilot, lambda: app.chat.prompt.text == "delta" and len(app.chat.transcript.turns) == 3)
        await wait_until(pilot, lambda: len(session.asked) == 1)
    again = make_app()
    async with again.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        text = again.chat.prompt.text
        assert [line for line in text.split("\n") if line != "alpha"] == ["beta", "gamma", "delta"]


async def test_while_the_model_loads_each_message_is_its_own(make_app: MakeApp) -> None:
    session, may = FakeSession(), threading.Event()

    def load(progress: Progress) -> FakeSession:
        may.wait(600)
        return session

    app = make_app(load=load)
    async with app.run_test(size=(80, 24)) as pilot:
        burst(app, "alpha⏎beta⏎gamma")
        await wait_until(pilot, lambda: app.chat.prompt.text == "gamma" and len(app.chat.transcript.turns) == 2)
        may.set()
        await wait_until(pilot, lambda: [prompt for prompt, _ in session.asked] == ["alpha", "beta"])
        await idle(pilot)
        assert app.chat.prompt.text == "gamma"


@pytest.mark.parametrize("why", [ContextError("too long"), TemplateError("not this")], ids=["context", "template"])
async def test_a_refused_message_comes_back_in_front_of_what_was_typed_since(
    make_app: MakeApp, why: DFlashError
) -> None:
    session = FakeSession(refuse=why)
    app = make_app(session)
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        prompt = app.chat.prompt
        burst(app, "alpha⏎beta")
        await wait_until(pilot, lambda: prompt.text == "alpha\nbeta")
        if isinstance(why, ContextError):  # it shows what can be done
            await wait_until(pilot, lambda: isinstance(app.screen, FullScreen))
            await leave(pilot)
        await pilot.press("left", "X")
        assert prompt.text == "alpha\nbetXa", "the cursor is where it was typed"
        session.refuse = None
        if isinstance(why, ContextError):  # nothing of it is left in the conversation
            await pilot.press("ctrl+r")
            await shows(pilot, "nothing to retry yet")
            assert prompt.text == "alpha\nbetXa"
            await pilot.press("enter")
            await wait_until(pilot, lambda: [text for text, _ in session.asked][1:] == ["alpha\nbetXa"])
        else:
            await pilot.press("ctrl+r")
            await wait_until(pilot, lambda: len(session.asked) == 2)
            assert prompt.text == "betXa", "only the message itself is on its way again"


async def test_messages_behind_one_that_does_not_fit_come_back_with_it(make_app: MakeApp) -> None:
    """They would wait for ever: what the dialog offers is refused while messages wait."""
    session = FakeSession()
    app = make_app(session)
    may = threading.Event()
    conversation, ask_it = session.conversation, session.conversation.ask

    def refuse(*args: Any, **named: Any) -> Any:
        may.wait(600)
        return ask_it(*args, **named)

    conversation.ask = refuse  # type: ignore[method-assign]
    session.refuse = ContextError("too long")
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        burst(app, "alpha⏎beta⏎gamma⏎delta")
        await wait_until(pilot, lambda: app.chat.prompt.text == "delta" and len(app.chat.transcript.turns) == 3)
        may.set()
        await wait_until(pilot, lambda: isinstance(app.screen, FullScreen))
        assert app.chat.prompt.text == "alpha\nbeta\ngamma\ndelta"
        assert not app.chat.transcript.turns
        assert not app.chat.state.waiting
        session.refuse = None
        await leave(pilot)
        await pilot.press("enter")
        await wait_until(pilot, lambda: session.asked[-1][0] == "alpha\nbeta\ngamma\ndelta")
        await idle(pilot)


async def test_an_empty_conversation_has_its_page_again_after_a_refusal(make_app: MakeApp) -> None:
    session = FakeSession(refuse=ContextError("too long"))
    app = make_app(session)
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        burst(app, "alpha⏎")
        await wait_until(pilot, lambda: app.chat.prompt.text == "alpha" and isinstance(app.screen, FullScreen))
        await leave(pilot)
        await shows(pilot, "Try one")
        session.refuse = None
        await pilot.press("enter")
        await idle(pilot)
        assert not app.chat.transcript.start.display


@pytest.mark.parametrize("parts", [("gamma ⏎",), ("[gamma ]", "⏎")], ids=["keys", "paste"])
async def test_what_is_typed_over_the_choice_of_a_full_context_is_the_prompts(
    make_app: MakeApp, parts: tuple[str, ...]
) -> None:
    """The app opens that dialog by itself, and the user may be in the middle of a word."""
    session = FakeSession(refuse=ContextError("too long"))
    app = make_app(session)
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        burst(app, "alpha⏎")
        await wait_until(pilot, lambda: app.chat.prompt.text == "alpha" and isinstance(app.screen, FullScreen))
        session.refuse = None
        burst(app, *parts)
        await wait_until(pilot, lambda: len(session.asked) == 2)
        assert session.asked[1][0] == "alphagamma ", "Enter sent it, and chose nothing in the dialog"
        assert app.screen is app.chat
        assert app.focused is app.chat.prompt


async def test_slash_edit_leaves_the_message_in_the_prompt(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await ask(pilot, "hello")
        await idle(pilot)
        burst(app, "/edit⏎")
        await wait_until(pilot, lambda: app.chat.prompt.text == "hello")


async def test_two_running_apps_do_not_lose_each_others_text(make_app: MakeApp) -> None:
    async with make_app().run_test(size=(80, 24)) as first:
        await first.press(*"one")
        second = make_app()
        async with second.run_test(size=(80, 24)) as pilot:
            await loaded(pilot)
            assert second.chat.prompt.text == "", "its app is running"
            await pilot.press(*"two")
    third = make_app()
    async with third.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        assert third.chat.prompt.text == "two", "what was typed last"
        assert third.chat.state.past.entries == ("one",), "the other is in the history"


async def test_what_is_typed_is_on_the_disk_before_it_can_be_drawn(make_app: MakeApp, tmp_path: Path) -> None:
    """So is what was sent, before anything else happens: the test never lets the app draw a frame in between."""
    app = make_app(FakeSession(gate=threading.Semaphore(0)))

    def written() -> dict[str, object]:
        with closing(sqlite3.connect(tmp_path / "data" / "conversations.db")) as db:
            [(typed,)] = db.execute("SELECT typed FROM app").fetchall()
        found: dict[str, object] = json.loads(typed)
        return found

    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        prompt = app.chat.prompt
        prompt.insert("half a thought")
        assert written()["draft"] == "half a thought"
        prompt.action_send()
        assert (written()["draft"], written()["waiting"]) == ("", ["half a thought"])
        prompt.insert("/set nonsense 1")
        await wait_until(pilot, lambda: app.chat.state.busy)
        await taken(pilot)
        assert written()["draft"] == "/set nonsense 1"
        prompt.action_send()
        assert "/set nonsense 1" in str(written()["waiting"])
        await wait_until(pilot, lambda: bool(prompt.text))
        assert (written()["draft"], written()["waiting"]) == ("/set nonsense 1", [])
        app.chat.parts.sending.flow.stop()
        await idle(pilot)


@pytest.mark.parametrize(
    ("script", "left", "said"),
    [
        ('printf "\\nmore" >>"$1"', "first\nsecond\nmore", ""),
        ('printf "short\\n" >"$1"', "short", ""),
        ("exit 3", "first\nsecond", "ended with code 3; the prompt is unchanged"),
        ('echo new >"$1"; exit 1', "first\nsecond", "what was written is in"),
        ('rm "$1"', "first\nsecond", "wrote no readable text"),
        ('printf "\\377" >"$1"', "first\nsecond", "what was written is in"),
        (None, "first\nsecond", "cannot be run"),
    ],
)
async def test_the_prompt_in_an_editor(
    make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, left: str, said: str
) -> None:
    editor = tmp_path / "my editor"
    if script is not None:
        editor.write_text(f"#!/bin/sh\n{script}\n")
        editor.chmod(0o755)
    monkeypatch.setenv("VISUAL", f"'{editor}'")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    app = make_app()
    monkeypatch.setattr(app, "suspend", nullcontext)
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        app.post_message(Paste("first\nsecond"))
        await pilot.press("ctrl+e")
        await wait_until(pilot, lambda: app.chat.prompt.text == left and said in app.chat.query_one(Flash).text)
        kept = [path.read_bytes() for path in tmp_path.glob("dflash-message-*")]
        assert len(kept) == ("is in" in said), "a file that is not needed is removed"
        await pilot.press("ctrl+z")
        await pilot.pause()
        assert left == "first\nsecond" or app.chat.prompt.text == "first\nsecond"
