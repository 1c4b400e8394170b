"""The prompt: multi-line input, history, and nothing typed gets lost."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from textual.events import Paste

from dflash_tui.app import DFlashApp
from dflash_tui.history import History

from .fake import FakeSession
from .support import ask, idle, loaded, shows

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


async def test_enter_on_an_empty_prompt_sends_nothing(make_app: MakeApp) -> None:
    session = FakeSession()
    app = make_app(session)
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await pilot.press("enter", "space", "enter")
        await pilot.pause()
        assert session.asked == []


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


async def test_history_at_the_edges(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        for text in ("one", "two"):
            await ask(pilot, text)
            await idle(pilot)
        prompt = app.chat.prompt
        await pilot.press("d", "up")
        assert prompt.text == "two"
        await pilot.press("up", "up", "up")
        assert prompt.text == "one"
        await pilot.press("down")
        assert prompt.text == "two"
        await pilot.press("down", "down")
        assert prompt.text == "d", "the draft comes back"


async def test_up_inside_a_message_moves_the_cursor(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await ask(pilot, "old")
        await idle(pilot)
        await pilot.press("a", "ctrl+j", "b", "up")
        assert app.chat.prompt.text == "a\nb"
        await pilot.press("up")
        assert app.chat.prompt.text == "old"


async def test_history_survives_a_restart(make_app: MakeApp, tmp_path: Path) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await ask(pilot, "kept")
        await idle(pilot)
    again = make_app()
    async with again.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await pilot.press("up")
        assert again.chat.prompt.text == "kept"
    if os.name == "posix":
        assert (tmp_path / "data" / "prompts.jsonl").stat().st_mode & 0o077 == 0, "prompts are the user's alone"


async def test_a_folder_that_cannot_be_written_is_said_once(make_app: MakeApp, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    session = FakeSession()
    app = make_app(session, data_dir=blocked / "data")
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        messages = [notification.message for notification in app._notifications]
        assert len(messages) == 1
        assert messages[0].endswith("prompts are kept until the app closes")
        await shows(pilot, "Prompt history")
        await idle(pilot)
        assert session.asked[0][0] == "hi"
        await pilot.press("up")
        assert app.chat.prompt.text == "hi"


def test_history_file_with_torn_lines(tmp_path: Path) -> None:
    lines = [json.dumps({"prompt": "a\u2028b"}), '{"prompt": "tor', "[]", '{"prompt": 3}', json.dumps({"prompt": "c"})]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines))
    history = History(tmp_path)
    assert history.entries == ("a\u2028b", "c")
    history.add("d")
    history.add("d")
    assert History(tmp_path).entries[-1] == "d"
    assert history.entries == ("a\u2028b", "c", "d")


def test_history_begins_a_line_of_its_own_after_a_torn_one(tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "tor')
    History(tmp_path).add("next")
    assert History(tmp_path).entries == ("next",)


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
        assert app.chat.knobs.budget == 30, "digits belong to a slider"
        await pilot.press("x")
        assert app.chat.prompt.text == "h ix"


def test_two_running_apps_do_not_lose_each_others_draft(tmp_path: Path) -> None:
    first, second = History(tmp_path), History(tmp_path)
    assert first.load_draft() == second.load_draft() == ""
    first.save_draft("of the first")
    second.save_draft("")
    third = History(tmp_path)
    assert third.load_draft() == ""
    assert third.entries == ("of the first",), "it is in the history instead"
    third.save_draft("of the third")
    third.save_draft("of the third, longer")
    assert History(tmp_path).load_draft() == "of the third, longer"
    assert History(tmp_path).entries == ("of the first",), "its own earlier draft is not another's"
