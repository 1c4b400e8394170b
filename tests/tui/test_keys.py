"""Keys that work everywhere, slash commands, help and palette."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.containers import VerticalScroll
from textual.dom import DOMNode
from textual.events import Key
from textual.selection import SELECT_ALL
from textual.widgets import Input, OptionList, Static

from dflash_core.knobs import Knobs
from dflash_tui.app import DFlashApp
from dflash_tui.screens import pages
from dflash_tui.screens.chats import ChatsScreen
from dflash_tui.screens.page import HelpScreen
from dflash_tui.screens.palette import ActionProvider
from dflash_tui.settings.keys import ACTIONS, MOVES
from dflash_tui.slash import table as slash
from dflash_tui.terminal.key_order import as_move
from dflash_tui.widgets.dialogs import ConfirmScreen
from dflash_tui.widgets.key_line import KeyLine
from dflash_tui.widgets.prompt import is_command

from .fake import FakeSession
from .support import ask, idle, leave, loaded, says, screen_text, shows, talking, wait_until
from .test_every_key import DIALOGS, PAGE_OPENERS

MakeApp = Callable[..., DFlashApp]


async def test_ctrl_c_copies_a_selection_of_the_prompt(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await pilot.press("h", "e", "y", "shift+home", "ctrl+c")
        assert app.clipboard == "hey"
        await shows(pilot, "copied 3 characters")
        assert app.chat.prompt.text == "hey"


async def test_ctrl_c_copies_a_selection_of_the_conversation_even_in_mid_turn(make_app: MakeApp) -> None:
    session = FakeSession(gate=threading.Semaphore(6))
    app = make_app(session)
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await shows(pilot, "Speculative")
        paragraph = app.chat.query("MarkdownParagraph").first()
        app.chat.selections = {paragraph: SELECT_ALL}
        await pilot.press("ctrl+c")
        assert app.clipboard.startswith("Speculative")
        assert app.chat.state.turn.running is not None
        assert not app.chat.state.turn.running.stopping
        await pilot.press("ctrl+c")
        await idle(pilot)
        await shows(pilot, "stopped")


async def test_a_selection_over_several_blocks_holds_their_text_alone(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 40)) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await idle(pilot)
        rows = screen_text(app).splitlines()
        first = next(y for y, row in enumerate(rows) if "❯ hi" in row)
        last = next(y for y, row in enumerate(rows) if "gets slower" in row)
        await pilot.mouse_down(offset=(0, first))
        await pilot.hover(offset=(60, last))
        await pilot.mouse_up(offset=(60, last))
        await pilot.press("ctrl+c")
        copied = app.clipboard.split("\n")
        assert copied[0] == "hi"
        assert copied[-1].endswith("gets slower")
        assert "def follow(tree, posterior):" in copied
        assert not [line for line in copied if "click copies" in line or "❯" in line]


async def test_ctrl_c_without_selection_or_turn_says_how_to_quit(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await pilot.press("ctrl+c")
        await shows(pilot, "Ctrl+Q quits")
        assert app.is_running


async def test_ctrl_q_quits(make_app: MakeApp, tmp_path: Path) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await pilot.press("d", "r", "a", "f", "t", "ctrl+q")
        await pilot.pause()
    assert app.return_value == 0
    again = make_app()
    async with again.run_test(size=(80, 24)) as pilot:
        await wait_until(pilot, lambda: again.chat.prompt.text == "draft")  # unsent text comes back


async def test_ctrl_q_asks_once_while_an_answer_is_written(make_app: MakeApp) -> None:
    session = FakeSession(gate=threading.Semaphore(3))
    app = make_app(session)
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await pilot.press("ctrl+q")
        await wait_until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await leave(pilot)
        assert app.chat.state.busy
        assert not app.chat.state.turn.running.stopping  # type: ignore[union-attr]
        running = app.chat.state.turn.running
        await pilot.press("ctrl+q")
        await wait_until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("ctrl+q")
        await pilot.pause()
    assert app.return_value == 0
    assert running is not None
    assert running.over, "the decoder's thread has ended"


async def test_help_lists_every_key_and_command(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 60)) as pilot:
        await loaded(pilot)
        await pilot.press("f1")
        await wait_until(pilot, lambda: isinstance(app.screen, HelpScreen))
        text = str(app.screen.query_one("#help-page", Static).visual)
        for action in ACTIONS:
            if action.scope == "chat":
                assert action.shown in text
            else:
                assert f" {action.help}\n" not in text, "the help is that of the screen below it"
        for command in slash.SLASH.values():
            assert command.usage in text
        assert "Enter sends" in text, "the help of the widget that had the focus"
        await leave(pilot)


async def test_help_of_a_page_begins_with_its_own_keys(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await pilot.press("ctrl+o")
        await shows(pilot, "Esc Back")
        await pilot.press("f1")
        await wait_until(pilot, lambda: isinstance(app.screen, HelpScreen))
        await shows(pilot, "Esc closes")
        text = screen_text(app)
        assert "go on with the conversation" in text
        assert "delete it" in text


async def test_every_action_of_the_table_exists(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        screens = {"chat": app.chat} | {
            getattr(page, "SCOPE", ""): page for page in (pages.page(name, app.chat.parts, "") for name in pages.PAGES)
        }
        for action in ACTIONS:
            if action.action and not action.action.startswith("app."):
                assert hasattr(screens[action.scope], "action_" + action.action.split("(")[0]), action
        provider = ActionProvider(app.chat)
        hits = [hit async for hit in provider.search("retry")]
        assert [hit.text for hit in hits][:1] == ["Retry"]
        by_help = [hit.text for hit in sorted([hit async for hit in provider.search("budget")], key=lambda h: -h.score)]
        assert {"Smaller tree", "Larger tree", "What if"} <= set(by_help), "by what they do, not by their names alone"
        here = [one for one in ACTIONS if one.action and one.scope == "chat"]
        assert len([hit async for hit in provider.discover()]) == len(here)


async def test_palette_runs_an_action(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await pilot.press("ctrl+p")
        await pilot.pause(0.1)
        await pilot.press(*"think")
        await shows(pilot, "thinking on or off for the next turn")
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.chat.state.knobs.thinking)


async def test_slash_sets(make_app: MakeApp) -> None:
    session = FakeSession()
    app = make_app(session)
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        for typed, expected in (
            ("/set budget 32", Knobs(drafting="tree 32")),
            ("/set p_min=0.1", Knobs(drafting="tree 22", p_min=0.1)),
            ("/set thinking on", Knobs(thinking=True)),
            ("/think on", Knobs(thinking=True)),
            ("/SET mode chain", Knobs(drafting="chain 15")),
        ):
            app.chat.tuning.set_all(Knobs())
            app.chat.prompt.text = typed
            await pilot.press("enter")
            await wait_until(pilot, lambda expected=expected: app.chat.state.knobs == expected)
            assert session.asked == []
            assert app.chat.prompt.text == ""


async def test_a_wrong_command_is_explained_and_kept(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        for typed, said in (
            ("/rety", "unknown command /rety; did you mean /retry?"),
            ("/bench", "unknown command /bench; /help lists the commands"),
            ("/", "not a command: /; /help lists them"),
            ("/zzzz", "unknown command /zzzz; /help lists the commands"),
            ("/set budget 999", "budget=999: expected 1 to 256"),
            ("/set bugdet 9", "unknown parameter 'bugdet'; did you mean budget?"),
            ("/set budget", "budget: the size of drafting; a tree of this size where it has none"),
            ("/think maybe", "write /think on or /think off"),
        ):
            app.chat.prompt.text = typed
            await pilot.press("enter")
            await shows(pilot, said)
            assert app.chat.prompt.text == typed
            assert app.chat.state.knobs == Knobs()


async def test_slash_clear_retry_copy_and_quit(make_app: MakeApp) -> None:
    session = FakeSession()
    app = make_app(session)
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await idle(pilot)
        await ask(pilot, "/retry")
        await wait_until(pilot, lambda: len(session.asked) == 2)
        await idle(pilot)
        await ask(pilot, "/copy")
        assert app.clipboard == session.answer
        await ask(pilot, "/clear")
        await shows(pilot, "a chat that drafts ahead")
        assert session.conversation.messages == []
        await ask(pilot, "/quit")
        await pilot.pause()
    assert app.return_value == 0


@pytest.mark.parametrize(
    ("text", "command"), [("/usr/bin/x is", False), ("//set", False), ("/set a b", True), ("a /b", False)]
)
def test_what_is_a_command(text: str, command: bool) -> None:
    assert is_command(text) is command


async def test_a_message_may_begin_with_a_slash(make_app: MakeApp) -> None:
    session = FakeSession()
    app = make_app(session)
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        app.chat.prompt.text = "//help"
        await pilot.press("enter")
        await idle(pilot)
        assert session.asked[0][0] == "/help"


@pytest.mark.parametrize("focus", ["prompt", "transcript"])
async def test_alt_t_as_terminals_send_it_opens_the_thinking_and_types_nothing(make_app: MakeApp, focus: str) -> None:
    """Pilot's keys have no character; a terminal's Alt+T has the character t, which is no text."""
    app = make_app(knobs=Knobs(thinking=True))
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await idle(pilot)
        answer = app.chat.transcript.answer
        assert answer is not None
        getattr(app.chat, focus).focus()
        await pilot.pause()
        for key, character in (("alt+t", "t"), ("alt+x", "x")):
            app.post_message(Key(key, character))
            await pilot.pause()
        await wait_until(pilot, lambda: answer.thinking.line.open)
        assert app.chat.prompt.text == ""


async def test_the_names_that_set_knows_are_all_seen_at_80_columns(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        app.chat.prompt.text = "/set budget 7 8"
        await pilot.press("enter")
        await shows(pilot, "ignore_eos")


async def test_keys_are_asked_for_while_the_chat_goes(make_app: MakeApp) -> None:
    """The line of keys asks for them by a timer, even when widgets have been removed."""
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        await loaded(pilot)
        await app.chat.query("FindBar").remove()
        assert not app.chat.check_action("close", ())
        assert not app.chat.check_action("stop", ())


async def test_the_keys_that_are_possible_are_found_without_a_walk(make_app: MakeApp) -> None:
    """They are asked for twice a second, also while an answer is decoded; a walk would visit the whole conversation."""
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await ask(pilot, "hello")
        await idle(pilot)
        walked: list[DOMNode] = []
        walk = DOMNode.walk_children

        def noted(node: DOMNode, *args: Any, **options: Any) -> Any:
            walked.append(node)
            return walk(node, *args, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(DOMNode, "walk_children", noted)
            assert "Send" in [one.label for one in app.chat.query_one(KeyLine).hints]
        assert not walked


async def test_letters_move_in_every_list_and_page_and_nowhere_else(make_app: MakeApp) -> None:
    async with talking(make_app, ("hi", "hey")) as (app, pilot, _):

        def moved(key: str, character: str | None = None) -> str:
            return as_move(Key(key, character), MOVES, app.screen, app.focused).key

        meant = {"j": "down", "k": "up", "G": "end", "ctrl+d": "pagedown", "ctrl+u": "pageup"}
        assert {moved(key) for key in meant} == {*meant}, "the prompt edits"
        app.chat.transcript.focus()
        await pilot.pause()
        assert [moved(key) for key in ("ctrl+d", "j")] == ["pagedown", "j"], "letters are text"
        letters = [name for name in meant if len(name) == 1]
        for name, opener in {**PAGE_OPENERS, **DIALOGS}.items():
            screen = opener(app)
            await app.push_screen(screen)
            await pilot.pause()
            now = {key: moved(key, key if len(key) == 1 else None) for key in meant}
            bound = screen.active_bindings
            if isinstance(screen.focused, Input):
                assert now == {key: key for key in meant}, name
            elif "pagedown" in bound:
                assert (now["ctrl+d"], now["ctrl+u"]) == ("pagedown", "pageup"), name
                texts = name in ("models", "get", "full")
                assert [now[key] for key in letters[:2]] == (["j", "k"] if texts else ["down", "up"]), name
            app.pop_screen()
            await pilot.pause()


async def test_a_list_and_a_page_by_letters(make_app: MakeApp) -> None:
    async with talking(make_app, ("one", "1"), size=(80, 24)) as (app, pilot, session):
        for text in ("two", "three"):
            await pilot.press("ctrl+n")
            await says(pilot, session, text, "ok")
        await pilot.press("ctrl+o")
        await wait_until(pilot, lambda: isinstance(app.screen, ChatsScreen))
        options = app.screen.query_one("#chats-list", OptionList)
        places = []
        for key in ("j", "k", "G", "g", "g", "ctrl+d", "ctrl+u"):
            await pilot.press(key)
            await pilot.pause()
            places.append(options.highlighted)
        assert places == [1, 0, 2, 0, 0, 2, 0]
        await leave(pilot)
        await pilot.press("f1")
        await wait_until(pilot, lambda: isinstance(app.screen, HelpScreen))
        page = app.screen.query_one(VerticalScroll)
        for key, moved in (("j", lambda: page.scroll_y > 0), ("G", lambda: page.scroll_y == page.max_scroll_y > 9)):
            await pilot.press(key)
            await wait_until(pilot, moved)
        await pilot.press("g", "g")
        await wait_until(pilot, lambda: page.scroll_y == 0)
