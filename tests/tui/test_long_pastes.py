"""Pastes too long to be shown: a few words stand for them, and nothing of them is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from textual.events import Paste

from dflash_core.errors import ContextError
from dflash_tui.app import DFlashApp
from dflash_tui.screens.full import FullScreen, fullness
from dflash_tui.widgets.literal import Static
from support.stored import kill

from .fake import FakeSession
from .support import ask, idle, leave, loaded, screen_text, shows, wait_until

MakeApp = Callable[..., DFlashApp]


LONG = "a long line without end " * 450_000  # 10.8 MB
WORDS = "[pasted 1: 11MB]"


async def test_a_paste_of_10_megabytes_is_a_few_words_and_is_sent_whole(make_app: MakeApp) -> None:
    """Each key lays out what the prompt shows, and writes that to the journal: the paste is in neither."""
    session = FakeSession()
    app = make_app(session)
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        prompt, database = app.chat.prompt, app.chat.state.conversation.store

        def sizes(column: str, table: str) -> list[int]:
            app.chat.state.conversation.journal.flush()
            return database.read(lambda db: [size for (size,) in db.execute(f"SELECT length({column}) FROM {table}")])

        await pilot.press("a", "colon")
        app.post_message(Paste(LONG + "@gone.md"))  # what is pasted in length names no files
        await wait_until(pilot, lambda: WORDS in prompt.text)
        await pilot.press("w", "h", "y")
        assert prompt.text == f"a:{WORDS}why"
        assert prompt.whole == f"a:{LONG}@gone.mdwhy"
        [typed] = sizes("typed", "app")
        assert typed < 200
        assert sizes("text", "paste") == [len(LONG) + len("@gone.md")]
        rewritten = "CREATE TEMP TRIGGER again BEFORE INSERT ON paste BEGIN SELECT RAISE(ABORT, 'again'); END"
        database.read(lambda db: db.execute(rewritten))
        await pilot.press("question_mark")
        assert sizes("typed", "app") == [typed + 1], "a key writes no paste again"
        await pilot.press("enter")
        await idle(pilot)
        assert session.asked[0][0] == f"a:{LONG}@gone.mdwhy?"
        assert prompt.text == ""
        assert sizes("text", "paste") == []
        database.read(lambda db: db.execute("DROP TRIGGER again"))
        shown = app.chat.transcript.turns[0].query_one(".user-text", Static).render()
        assert len(str(shown)) < 1_000, "the conversation does not lay it out either"
        assert "[11MB more]" in str(shown)
        await pilot.press("up")
        assert prompt.whole == f"a:{LONG}@gone.mdwhy?"
        assert prompt.text == f"a:{WORDS}why?", "it is still known"


async def test_a_long_paste_has_one_count_of_tokens(make_app: MakeApp) -> None:
    """The same count stands beside the context and in a refusal. The decoder's own figure in a refusal is the fewest
    tokens that so many bytes can be."""
    session = FakeSession(refuse=ContextError("the message is too long", needed=len(LONG) // 128, capacity=32_768))
    app = make_app(session)
    async with app.run_test(size=(100, 24)) as pilot:
        await loaded(pilot)
        app.post_message(Paste(LONG))
        await shows(pilot, WORDS, "+2.7M/32k")
        await pilot.press("enter")
        await shows(pilot, "The message alone has about 2.7M tokens, the context 32,768 positions.")
        await leave(pilot)
        await shows(pilot, WORDS, "+2.7M/32k")
        session.refuse = None
        app.chat.prompt.text = ""
        await ask(pilot, "hi")
        await idle(pilot)
        await wait_until(pilot, lambda: fullness(app.chat.parts).message == 0)
        assert not fullness(app.chat.parts).too_long, "what was refused before says nothing any more"


LESS = "a long line without end " * 4_000
LESS_WORDS = "[pasted 1: 96kB]"


@pytest.mark.parametrize(
    ("column", "key"),
    [(0, "delete"), (9, "backspace"), (9, "ctrl+w"), (9, "delete"), (len(LESS_WORDS), "backspace")],
)
async def test_the_words_of_a_paste_go_as_one_and_come_back_by_undo(make_app: MakeApp, column: int, key: str) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        prompt = app.chat.prompt
        await pilot.press("a", "space")
        app.post_message(Paste(LESS))
        await wait_until(pilot, lambda: LESS_WORDS in prompt.text)
        await pilot.press("space", "b")
        prompt.move_cursor((0, len("a ") + column))
        await pilot.press(key)
        assert prompt.text == prompt.whole == "a  b"
        await pilot.press("ctrl+z")
        assert prompt.whole == f"a {LESS} b"


async def test_nothing_comes_between_the_words_of_a_paste(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        prompt = app.chat.prompt
        app.post_message(Paste(LESS))
        await wait_until(pilot, lambda: LESS_WORDS in prompt.text)
        prompt.move_cursor((0, 9))
        await pilot.press("x", "y")
        assert prompt.whole == f"{LESS}xy"


async def test_a_long_paste_that_was_refused_killed_or_edited_is_whole_again(make_app: MakeApp, tmp_path: Path) -> None:
    app = make_app(session := FakeSession(refuse=ContextError("too long")))
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        prompt = app.chat.prompt
        app.post_message(Paste(LESS))
        await wait_until(pilot, lambda: LESS_WORDS in prompt.text)
        await pilot.press("enter")
        await wait_until(pilot, lambda: isinstance(app.screen, FullScreen))
        await leave(pilot)
        assert prompt.text == LESS_WORDS
        assert prompt.whole == LESS
        session.refuse = None
        await pilot.press("enter")
        await idle(pilot)
        assert [turn.prompt for turn in app.chat.transcript.turns] == [LESS], "the refused one is this one"
        await pilot.press("alt+e")
        await wait_until(pilot, lambda: prompt.text == LESS_WORDS)
        await pilot.press("escape")
        assert prompt.text == ""
        await pilot.press("up", "w", "h", "y")
        assert prompt.whole == f"{LESS}why"
        kill(app.chat.state.conversation.journal)
    again = make_app()
    async with again.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await wait_until(pilot, lambda: bool(again.chat.prompt.text))
        assert again.chat.prompt.whole == f"{LESS}why"
        assert len(again.chat.prompt.text) < 1_000


async def test_a_long_prompt_is_emptied_by_a_visible_key_and_comes_back(make_app: MakeApp) -> None:
    app = make_app()
    text = "\n".join(f"line {number}" for number in range(9))
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await pilot.press("h", "i")
        await pilot.pause()
        assert "Empty" not in screen_text(app)
        app.post_message(Paste(f"\n{text}"))
        await shows(pilot, "Ctrl+L Empty")
        await pilot.press("ctrl+l")
        await pilot.pause()
        assert app.chat.prompt.text == ""
        await pilot.press("n", "ctrl+z", "ctrl+z")
        await pilot.pause()
        assert app.chat.prompt.text == f"hi\n{text}"
