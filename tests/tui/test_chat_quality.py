"""What a chat should do: system message, files, queue, find, copy, undo, and a full context."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from textual.pilot import Pilot

from dflash_core.errors import ContextError
from dflash_core.limits import Limits
from dflash_tui.app import DFlashApp
from dflash_tui.application.amounts import ago
from dflash_tui.application.conversations.branches import Branches, Node
from dflash_tui.application.conversations.store import Card, Store, StoredConversation
from dflash_tui.application.session import Loader, LoadRequest
from dflash_tui.application.settings.config import load_config, user_file
from dflash_tui.screens.full import FullScreen, fullness
from dflash_tui.widgets.find_bar import FindBar
from dflash_tui.widgets.flash import Flash
from dflash_tui.widgets.strip import TitleRow

from .fake import FakeSession, loader
from .scenes import send
from .support import ask, idle, leave, loaded, says, screen_text, shows, talking, wait_until

MakeApp = Callable[..., DFlashApp]


class Small(FakeSession):
    """A pair with little context, of a model trained for more. It refuses what does not fit, as the decoder does."""

    @property
    def limits(self) -> Limits:
        return Limits(self.capabilities, self.context_length, max_context=4096)


def full(session: FakeSession) -> None:
    session.refuse = ContextError(
        "the conversation has 1,100 tokens with this message and the context holds 1,024", needed=1100, capacity=1024
    )


async def test_more_context_than_the_model_was_made_for_is_refused_by_its_limit(make_app: MakeApp) -> None:
    app = make_app(Small(context_length=1024))
    async with app.run_test(size=(120, 50)) as pilot:
        await loaded(pilot)
        for command in ("/set context 600000", "/reload 600,000", "/set context 99999999"):
            app.chat.query_one(Flash).hide()
            await send(pilot, command)
            await shows(pilot, "expected 0 to 4,096; the model was made for 4,096 positions")
            assert app.chat.prompt.text == command
            assert app.chat.state.context == 0, "a profile that is kept now has no such value"
        app.chat.query_one(Flash).hide()
        app.chat.inspector.params_panel.unfold(True)
        row = app.chat.inspector.params_panel.row("context")
        await pilot.press("f2")
        row.focus()
        await pilot.press("8", "1", "9", "2", "enter")
        await shows(pilot, "the model was made for 4,096 positions")
        await wait_until(pilot, lambda: row.value == 0 and not row.staged)
        await send(pilot, "/set context 4,096")
        await shows(pilot, "context 4,096: /reload")


async def test_a_system_message_per_conversation_and_as_a_default(make_app: MakeApp) -> None:
    session = FakeSession()
    app = make_app(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await send(pilot, "/system Be brief.")
        await shows(pilot, "system message")
        await ask(pilot, "hi")
        await idle(pilot)
        assert [one.content for one in session.conversation.messages][:2] == ["Be brief.", "hi"]
        await send(pilot, "/system")
        await shows(pilot, "the system message is: Be brief.")
        await pilot.press("ctrl+n")
        await ask(pilot, "again")
        await idle(pilot)
        assert session.conversation.messages[0].content == "again", "a new conversation has none"
        await send(pilot, "/system default Answer in verse.")
        await pilot.press("ctrl+n")
        await ask(pilot, "third")
        await idle(pilot)
        assert session.conversation.messages[0].content == "Answer in verse."
        assert load_config().settings.system == "Answer in verse."
        await pilot.press("ctrl+o")
        await shows(pilot, "3 conversations")
        await pilot.press("down", "down", "enter")
        await wait_until(pilot, lambda: session.conversation.messages[:1] != [] and app.screen is app.chat)
        assert session.conversation.messages[0].content == "Be brief."
        assert "Be brief." in app.chat.state.conversation.card.system  # type: ignore[union-attr]


async def test_a_file_goes_with_a_message_and_is_shown_as_a_line(
    make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.md").write_text("the fox is red\n")
    (tmp_path / "x.bin").write_bytes(b"\0\1")
    session = FakeSession()
    app = make_app(session)
    async with app.run_test(size=(100, 30)) as pilot:
        await loaded(pilot)
        app.chat.prompt.insert("read @no")
        await shows(pilot, "notes.md", "about 4 tok")
        await pilot.press("tab")
        assert app.chat.prompt.text == "read @notes.md "
        await pilot.press("enter")
        await idle(pilot)
        await wait_until(pilot, lambda: bool(session.asked))
        assert session.asked[0][0].endswith("```md\nthe fox is red\n```")
        await shows(pilot, "❯ read @notes.md", "▫ notes.md · 15B")
        assert "the fox is red" not in screen_text(app)
        await send(pilot, "and @x.bin")
        await shows(pilot, "@x.bin is not text")
        await send(pilot, "and @gone.md")
        await shows(pilot, "@gone.md: no such file")
        assert app.chat.prompt.text == "and @gone.md"
        await pilot.press("alt+e")
        assert app.chat.prompt.text == "read @notes.md "


async def test_tokens_of_the_draft_count_against_the_context(make_app: MakeApp) -> None:
    app = make_app(FakeSession(context_length=1024))
    async with app.run_test(size=(100, 30)) as pilot:
        await loaded(pilot)
        row = app.chat.query_one(TitleRow)
        await ask(pilot, "hi")
        await idle(pilot)
        used = row.context[0]
        assert used == 230, "120 of the prompt and the answer's 110"
        app.chat.prompt.insert("word " * 80)
        await wait_until(pilot, lambda: row.context[1] == 100)
        app.chat.prompt.insert("word " * 500)
        await shows(pilot, "%: /full")
        app.chat.prompt.text = ""
        await wait_until(pilot, lambda: row.context[1] == 0)
        await pilot.press("ctrl+n")
        await wait_until(pilot, lambda: row.context[0] == 0)
        await pilot.press("ctrl+o")
        await shows(pilot, "1 conversation")
        await pilot.press("enter")
        await wait_until(pilot, lambda: row.context[0] == used)


async def test_the_gauge_keeps_its_value_over_a_reload(make_app: MakeApp) -> None:
    app = make_app(loaders=lambda request: loader(FakeSession(context_length=request.context or 1024)))
    async with app.run_test(size=(100, 30)) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await idle(pilot)
        used = app.chat.query_one(TitleRow).context[0]
        await send(pilot, "/reload 8192")
        await wait_until(pilot, lambda: app.chat.query_one(TitleRow).context == (used, 0, 8192))


async def test_a_full_context_offers_ways_on_and_says_it_once(make_app: MakeApp) -> None:
    session = Small(context_length=1024)
    asked: list[LoadRequest] = []

    def loaders(request: LoadRequest) -> Loader:
        asked.append(request)
        return loader(Small(context_length=request.context or 1024))

    app = make_app(session, loaders=loaders)
    async with app.run_test(size=(100, 30)) as pilot:
        await loaded(pilot)
        for number in range(1, 4):
            await ask(pilot, f"question {number}")
            await wait_until(pilot, lambda number=number: len(app.chat.transcript.turns) == number)
            await idle(pilot)
        full(session)
        for _ in range(2):
            await send(pilot, "one more")
            await wait_until(pilot, lambda: isinstance(app.screen, FullScreen))
            await shows(pilot, "takes 1,100 of 1,024 positions", "was made for 4,096", "reload with 2,048")
            await leave(pilot)
            assert app.chat.prompt.text == "one more"
        assert len(app.chat.transcript.turns) == 3, "nothing of the refusals is left in the conversation"
        assert not app.chat.query(".note.-error")
        session.refuse = None
        await send(pilot, "/full")
        await wait_until(pilot, lambda: isinstance(app.screen, FullScreen))
        await shows(pilot, "leave out the oldest 2 turns")
        whole = app.chat.gauges.used
        await pilot.press("down", "enter")
        await shows(pilot, "the model no longer sees the 2 turns above")
        left = app.chat.gauges.used
        assert 0 < left < whole / 2, "the context that old turns took is free"
        await shows(pilot, f"ctx {left}/")
        assert [one.content for one in session.conversation.messages if one.role == "user"] == ["question 3"]
        await ask(pilot, "after")
        await idle(pilot)
        await wait_until(pilot, lambda: len(app.chat.state.conversation.branches.path) == 8)
        await send(pilot, "/full")
        await wait_until(pilot, lambda: isinstance(app.screen, FullScreen))
        await pilot.press("enter")
        await wait_until(pilot, lambda: bool(asked))
        assert asked[-1].context == 2048
        await wait_until(pilot, lambda: app.chat.state.session is not None)
        await send(pilot, "/full")
        await wait_until(pilot, lambda: isinstance(app.screen, FullScreen))
        await shows(pilot, "started with a summary")
        await pilot.press("end", "up", "enter")
        await wait_until(pilot, lambda: "Earlier we spoke about this:" in app.chat.prompt.text)
        assert "I asked: question 1" in app.chat.prompt.text
        assert not app.chat.transcript.turns


async def test_a_long_conversation_without_figures_is_no_long_message(make_app: MakeApp, tmp_path: Path) -> None:
    """Regression: after an import, or with another model, a message of one word was said to be too long by itself."""
    store, question = Store(tmp_path / "data"), Node("user", "question 1")
    reply = Node("assistant", "answer", question.id)
    store.put(StoredConversation(Card("long"), Branches([question, reply], reply.id)))
    store.close()
    session = Small(context_length=1024)
    app = make_app(session, resume="last")
    async with app.run_test(size=(100, 30)) as pilot:
        await loaded(pilot)
        await shows(pilot, "question 1")
        session.refuse = ContextError("the conversation has 13,000 tokens", needed=13_000, capacity=1024)
        await send(pilot, "hello")
        await wait_until(pilot, lambda: isinstance(app.screen, FullScreen))
        await shows(pilot, "The conversation takes 13,000 of 1,024", "started with a summary")


async def test_a_message_that_no_context_holds_is_to_be_shortened(make_app: MakeApp) -> None:
    """Regression: the advice was to leave out the oldest turn or to begin again. Neither makes room for a megabyte."""
    session = Small(context_length=1024)
    app = make_app(session)
    async with app.run_test(size=(100, 30)) as pilot:
        await loaded(pilot)
        await ask(pilot, "question")
        await idle(pilot)
        session.refuse = ContextError("the message has 31,250 tokens at least", needed=31_250, capacity=1024)
        await send(pilot, "word " * 2100)
        await wait_until(pilot, lambda: isinstance(app.screen, FullScreen))
        await shows(pilot, "The message alone has", "Esc back")
        assert isinstance(app.screen, FullScreen)
        assert fullness(app.chat.parts).line().endswith("shorten it there.")
        assert app.screen.choices() == []
        assert "leave out" not in screen_text(app)
        why, keys = app.screen.query_one("#full").children[0], app.screen.query_one("#full").children[-1]
        assert keys.region.y == why.region.bottom + 1, "no hole where a list would be"
        await pilot.press("enter")
        await leave(pilot)
        assert app.chat.prompt.text.startswith("word word")


async def test_the_figure_of_the_context_stays_right_after_turns_were_left_out(make_app: MakeApp) -> None:
    """Nothing in between may bring the old figure back: no reload, no refusal, no other conversation."""
    loads: list[LoadRequest] = []
    session = FakeSession()

    def loaders(request: LoadRequest) -> Loader:
        loads.append(request)
        return loader(session)

    app = make_app(session, loaders=loaders)

    async def has(figure: int) -> None:
        await wait_until(pilot, lambda: app.chat.gauges.used == figure)
        await shows(pilot, f"ctx {figure}/")

    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        for number in range(1, 4):
            await says(pilot, session, f"question {number}", "word " * 200)
        whole = app.chat.gauges.used
        await app.chat.parts.conversation.leave_out(2)
        left = app.chat.gauges.used
        assert 0 < left < whole / 2
        await has(left)
        loads.clear()
        await send(pilot, "/reload")
        await wait_until(
            pilot, lambda: bool(loads) and not app.chat.state.loading and app.chat.state.session is not None
        )
        await has(left)
        session.refuse = ContextError("it does not fit", needed=99_999, capacity=32_768)
        await send(pilot, "more")
        await wait_until(pilot, lambda: isinstance(app.screen, FullScreen))
        await leave(pilot)
        session.refuse, app.chat.prompt.text = None, ""
        await has(left)
        kept = app.chat.state.conversation.resumable
        await pilot.press("ctrl+n")
        await wait_until(pilot, lambda: app.chat.gauges.used == 0)
        await app.chat.parts.conversation.open(kept)
        await has(left)
        await shows(pilot, "the model no longer sees the 2 turns above")
        users = [one.content for one in session.conversation.messages if one.role == "user"]
        assert users == ["question 3"], "what it is given is what the figure counts"
        await ask(pilot, "question 4")
        await idle(pilot)
        await wait_until(pilot, lambda: len(app.chat.state.conversation.branches.path) == 8)
        report = app.chat.state.turn.report
        assert report is not None
        await has(report.stats.prompt_tokens + report.stats.tokens)


async def test_a_context_beyond_the_models_is_said(make_app: MakeApp) -> None:
    app = make_app(loaders=lambda request: loader(Small(context_length=min(request.context or 1024, 4096))))
    async with app.run_test(size=(100, 30)) as pilot:
        await loaded(pilot)
        app.chat.state.context = 100_000  # as --context has it, or a profile
        await send(pilot, "/reload")
        await shows(pilot, "the context is 4,096, all that the model was made for, not 100,000")
        assert app.chat.inspector.params_panel.row("context").value == 4096


@asynccontextmanager
async def answering(make_app: MakeApp) -> AsyncIterator[tuple[DFlashApp, Pilot[int], FakeSession]]:
    """In the middle of the answer to "first", which goes on once the gate is opened."""
    session = FakeSession(gate=threading.Semaphore(4))
    app = make_app(session)
    async with app.run_test(size=(100, 40)) as pilot:
        await loaded(pilot)
        await ask(pilot, "first")
        await wait_until(pilot, lambda: app.chat.state.busy)
        yield app, pilot, session


async def answered(pilot: Pilot[int], app: DFlashApp, session: FakeSession, *messages: str) -> None:
    """Open the gate, and wait until these have been answered."""
    assert session.gate is not None
    session.gate.release(10_000)
    await wait_until(pilot, lambda: len(session.asked) == len(messages) and not app.chat.state.busy)
    assert [prompt for prompt, _ in session.asked] == [*messages]


async def test_messages_wait_for_the_answer_under_way(make_app: MakeApp) -> None:
    async with answering(make_app) as (app, pilot, session):
        await send(pilot, "second")
        await send(pilot, "third")
        await shows(pilot, "❯ second", "queued: it is sent after this answer", "❯ third")
        await pilot.press("alt+e")
        await wait_until(pilot, lambda: app.chat.prompt.text == "third")
        await wait_until(pilot, lambda: screen_text(app).count("❯ third") == 1)  # in the prompt alone
        app.chat.prompt.text = "third, changed"
        await pilot.press("enter")
        await answered(pilot, app, session, "first", "second", "third, changed")
        await wait_until(pilot, lambda: len(app.chat.state.conversation.branches.path) == 6)


async def test_any_message_that_waits_can_be_taken_back(make_app: MakeApp) -> None:
    async with answering(make_app) as (app, pilot, session):
        for number, text in enumerate(("second", "third", "fourth"), 2):
            await send(pilot, text)
            await wait_until(pilot, lambda number=number: len(app.chat.transcript.turns) == number)
        await pilot.press("alt+up", "alt+up", "alt+up")
        await shows(pilot, "Alt+E takes it back")
        await pilot.press("alt+c")
        assert app.clipboard == "second"
        await pilot.press("alt+e")
        await wait_until(pilot, lambda: app.chat.prompt.text == "second")
        assert [one.prompt for one in app.chat.transcript.turns] == ["first", "third", "fourth"]
        await pilot.press("alt+up", "alt+up", "alt+up", "alt+up", "alt+e")
        await shows(pilot, "an answer is being written: Esc stops it first")
        assert len(app.chat.transcript.turns) == 3, "another message was chosen than those that wait"
        await answered(pilot, app, session, "first", "third", "fourth")


def hits(app: DFlashApp) -> list[str]:
    """What is marked on the screen, from top to bottom."""
    bar = app.chat.query_one(FindBar)
    grounds = {bar.get_component_rich_style(name).bgcolor for name in ("find--place", "find--here")}
    rows = app.chat._compositor.render_strips()
    return [one.text for row in rows for one in row if one.style is not None and one.style.bgcolor in grounds]


async def test_find_in_the_conversation(make_app: MakeApp) -> None:
    app = make_app(FakeSession(answer="The fox runs.\n\nA hen and a fox.\n"))
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        for number in range(1, 4):
            await ask(pilot, f"tell {number}")
            await wait_until(pilot, lambda number=number: len(app.chat.transcript.turns) == number)
            await idle(pilot)
        await pilot.press("ctrl+f", *"fox")
        bar = app.chat.query_one(FindBar)
        await wait_until(pilot, lambda: bar.found == 6)
        await shows(pilot, "6 of 6")
        assert set(hits(app)) == {"fox"}
        await pilot.press("enter", "n")
        await shows(pilot, "1 of 6")
        await pilot.press("N", "N")
        await shows(pilot, "5 of 6")
        await pilot.press("enter")
        await shows(pilot, "6 of 6")
        await pilot.press("ctrl+f", "escape")
        await wait_until(pilot, lambda: not bar.display and not hits(app))


async def test_a_hit_in_the_list_leads_to_its_place_on_a_hidden_branch(make_app: MakeApp) -> None:
    session = FakeSession()
    app = make_app(session)
    async with app.run_test(size=(100, 30)) as pilot:
        await loaded(pilot)
        session.answer = "A walrus sings.\n"
        await ask(pilot, "hi")
        await idle(pilot)
        session.answer = "A hen sings.\n"
        await pilot.press("ctrl+r")
        await idle(pilot)
        await wait_until(pilot, lambda: len(app.chat.state.conversation.branches.nodes) == 3)
        await pilot.press("ctrl+n", "ctrl+o", "slash", *"walrus")
        await shows(pilot, "1 found")
        await pilot.press("enter", "enter")
        await wait_until(pilot, lambda: app.chat.state.conversation.branches.path[-1].content == "A walrus sings.\n")
        await shows(pilot, "1 of 1")


async def test_copies_by_key_and_by_click(make_app: MakeApp) -> None:
    answer = "One:\n\n```python\nA = 1\n```\n\nTwo:\n\n```sh\nls\nls -l\n```\n"
    app = make_app(FakeSession(answer=answer))
    async with app.run_test(size=(80, 40)) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await idle(pilot)
        await shows(pilot, "python  click copies")
        await pilot.press("alt+x")
        assert app.clipboard == "ls\nls -l"
        await pilot.press("alt+x")
        assert app.clipboard == "A = 1"
        await pilot.press("alt+c")
        assert app.clipboard == answer
        await pilot.press("alt+up", "alt+up", "alt+c")
        assert app.clipboard == "hi"
        fence = app.chat.query("Fence").last()
        await pilot.click(fence, offset=(4, 0))
        await wait_until(pilot, lambda: app.clipboard == "ls\nls -l")


async def test_the_newest_code_is_copied_first_also_after_another_answer(make_app: MakeApp) -> None:
    first = "```python\nA = 1\n```\n\nTwo:\n\n```sh\nls\n```\n\nThree:\n\n```sh\ntop\n```\n"
    async with talking(make_app, ("one", first)) as (app, pilot, session):
        for expected in ("top", "ls"):
            await pilot.press("alt+x")
            assert app.clipboard == expected
        await says(pilot, session, "two", "```sh\nnewest\n```\n")
        await shows(pilot, "newest")
        for expected in ("newest", "top", "ls", "A = 1", "newest"):
            await pilot.press("alt+x")
            assert app.clipboard == expected


async def test_a_deletion_can_be_taken_back(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        await loaded(pilot)
        await ask(pilot, "hi")
        await idle(pilot)
        await pilot.press("ctrl+o", "d", "enter")
        await shows(pilot, "u restores it")
        await pilot.press("u")
        await shows(pilot, "1 conversation", "restored: ")
        await pilot.press("enter")
        await shows(pilot, "244 tok/s")
        await wait_until(pilot, lambda: app.chat.state.turn.record is not None)


def test_times_in_words() -> None:
    now = time.mktime((2026, 3, 5, 15, 0, 0, 0, 0, -1))
    assert ago(now - 20, now) == "just now"
    assert ago(now - 300, now) == "5 min ago"
    assert ago(now - 3 * 3600, now) == "3 h ago"
    assert ago(now - 20 * 3600, now) == "yesterday 19:00"
    assert ago(now - 3 * 86_400, now) == "Mon 15:00"
    assert ago(now - 30 * 86_400, now) == "2026-02-03"
    assert ago(now + 99, now) == "2026-03-05", "a clock that was set back"


def test_the_file_of_settings_is_untouched_by_reading() -> None:
    assert not user_file().exists()
