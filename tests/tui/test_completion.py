"""Slash commands while they are typed: completions, marks, and a name that does not exist."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dflash_tui.app import DFlashApp
from dflash_tui.slash import table as slash
from dflash_tui.widgets.prompt import Completions

from .scenes import send
from .support import idle, loaded, settled, shows, wait_until

MakeApp = Callable[..., DFlashApp]


async def test_completion(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        app.chat.prompt.focus()
        await pilot.press("slash", "s", "e")
        await shows(pilot, "/set NAME VALUE")
        await pilot.press("tab")
        assert app.chat.prompt.text == "/set "
        await shows(pilot, "p_min")
        await pilot.press("d", "r", "tab", *"tree", "space", "8")
        assert app.chat.prompt.text == "/set drafting tree 8"
        await wait_until(pilot, lambda: not app.chat.query_one(Completions).display)
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.chat.state.knobs.drafting == "tree 8")


async def test_another_completion_is_marked_with_the_arrows(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        app.chat.prompt.focus()
        await pilot.press("slash", "t")
        names = [row.text for row in app.chat.query_one(Completions).rows]
        assert len(names) > 2
        await pilot.press("down", "down", "up", "tab")
        assert app.chat.prompt.text == names[1]


async def test_enter_takes_a_completion_that_was_marked_on_purpose(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        app.chat.prompt.focus()
        await pilot.press("slash", "s", "w", "enter")
        await shows(pilot, "did you mean /sweep?")
        assert app.chat.prompt.text == "/sw", "what is offered unasked is not taken by Enter"
        app.chat.prompt.text = ""
        await pilot.press("slash", "s", "down", "enter")
        await wait_until(pilot, lambda: app.chat.prompt.text == "/sweep ")


async def test_esc_closes_the_completions_and_keeps_the_text(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        app.chat.prompt.focus()
        completions = app.chat.query_one(Completions)
        await pilot.press("slash", "t")
        await wait_until(pilot, lambda: completions.display)
        await shows(pilot, "Esc Close")
        await pilot.press("escape")
        assert not completions.display
        assert app.chat.prompt.text == "/t"
        assert "Esc Close" not in await settled(pilot)
        await pilot.press("up")
        app.chat.state.past.add("an earlier prompt")
        await pilot.press("up")
        assert app.chat.prompt.text == "an earlier prompt", "the arrows mark no completion now"


async def test_completions_say_what_each_is(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        for typed, said in (("/set tree_w", "candidates per draft position"), ("/preset wi", "a larger tree")):
            app.chat.prompt.text = typed
            await shows(pilot, said)
        app.chat.prompt.text = "/"
        await shows(pilot, "more")
        assert app.chat.query_one(Completions).size.height == 7, "a row each, however long"


async def test_messages_are_not_completed(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        for text in ("//set", "a /set", "/set\nmore", "hello"):
            assert slash.complete(text, app.chat.parts) == []
        assert slash.complete("/think o", app.chat.parts)[0].text == "/think on "
        assert {row.text for row in slash.complete("/", app.chat.parts)} == {f"/{name} " for name in slash.SLASH}


async def test_text_is_typed_and_sent_in_a_folder_that_is_gone(
    make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notes.md").write_text("what was noted")
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        folder.rmdir()
        app.chat.prompt.focus()
        await pilot.press("at", "n")
        await shows(pilot, "notes.md")  # names are looked up in the home folder instead
        await pilot.press("tab", "enter")
        await wait_until(pilot, lambda: "what was noted" in app.chat.transcript.turns[0].prompt)
        await idle(pilot)


async def test_an_unknown_command_names_the_nearest(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await send(pilot, "/retyr")
        await shows(pilot, "did you mean /retry?")
        assert app.chat.prompt.text == "/retyr", "what was typed stays"
