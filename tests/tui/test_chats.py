"""Conversations in the app: kept, resumed, branched, listed, exported; what a killed app has left is offered."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot

from dflash_core.knobs import Knobs
from dflash_core.record import lines
from dflash_tui.app import DFlashApp
from dflash_tui.application.background import ASIDE, any_aside
from dflash_tui.application.conversations.branches import Node
from dflash_tui.application.conversations.current import CUT_OFF
from dflash_tui.application.conversations.journal import Place
from dflash_tui.application.conversations.store import Card, Store, StoredConversation
from dflash_tui.chat import files
from dflash_tui.screens.chats import ChatsScreen
from dflash_tui.text.pages import render
from dflash_tui.widgets.dialogs import ConfirmScreen, LineScreen
from dflash_tui.widgets.strip import TitleRow
from support.stored import a_report, killed_app, talk, titles
from support.turns import step_of, turn_of

from .fake import ANSWER, FakeSession
from .scenes import send
from .support import (
    SIZES,
    ask,
    bare_text,
    contents,
    idle,
    loaded,
    says,
    screen_text,
    settled,
    shows,
    smallest,
    talking,
    wait_until,
)

MakeApp = Callable[..., DFlashApp]
Size = tuple[int, int]


async def test_a_conversation_is_kept_as_it_goes(make_app: MakeApp, store: Store) -> None:
    async with talking(make_app, ("first question", "one"), ("second", "two")) as (app, pilot, session):
        [entry] = store.list()
        assert (entry.card.title, entry.card.model, entry.messages) == ("first question", session.title, 4)
        path = store.branches(entry.card.id).path
        assert [node.content for node in path] == ["first question", "one", "second", "two"]
        assert path[3].report is not None
        assert store.record(path[3].id) == session.turns[-1]
        await pilot.press("ctrl+n")
        await wait_until(pilot, lambda: "a chat that drafts ahead" in screen_text(app))
        await says(pilot, session, "third", "three")
        assert titles(store) == ["third", "first question"]


@smallest
async def test_a_resumed_conversation_is_as_it_was(make_app: MakeApp, size: Size) -> None:
    session = FakeSession()
    app = make_app(session, Knobs(drafting="auto up to 40", thinking=True))
    async with app.run_test(size=size) as pilot:
        await loaded(pilot)
        await says(pilot, session, "first question", "the *first* answer")
        await pilot.press("ctrl+r")
        await idle(pilot)
        before = session.conversation.messages
    session = FakeSession(title="another pair")
    app = make_app(session, Knobs())
    async with app.run_test(size=size) as pilot:
        await loaded(pilot)
        await pilot.press("ctrl+o")
        await shows(pilot, "1 conversation", "first question", "2 messages")
        await pilot.press("enter")
        await shows(pilot, "❯ first question", "answer 1/2", "‹2/2›", "thought for", "auto up to 40")
        assert session.conversation.messages == before
        assert app.chat.state.knobs == Knobs(drafting="auto up to 40", thinking=True)
        assert "its model was Qwen3.5-demo" in app.notices.page()  # by now it may have faded
        await says(pilot, session, "and now?", "on it goes")
        assert contents(session)[0] == "first question"


async def test_a_conversation_opened_before_the_model_is_there(make_app: MakeApp, store: Store) -> None:
    talk(store, "first question", "answer")
    session, app = FakeSession(), None

    def load(progress: Callable[[str, float], None]) -> FakeSession:
        while app is None or not app.chat.state.conversation.card:
            time.sleep(0.01)
        return session

    app = make_app(load=load)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("ctrl+o", "enter")
        await loaded(pilot)
        assert contents(session) == ["first question", "answer"]
        await shows(pilot, "its model was demo pair")


async def test_a_conversation_that_the_app_begins_with_has_its_figures(make_app: MakeApp) -> None:
    session = FakeSession()
    app = make_app(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await says(pilot, session, "one", ANSWER)
        begun = app.chat.state.turn.record
        resumed = app.chat.state.conversation.resumable
    opened = threading.Event()

    def load(progress: Callable[[str, float], None]) -> FakeSession:
        opened.wait(600)
        return FakeSession()

    app = make_app(load=load, resume=resumed)
    async with app.run_test(size=(120, 40)) as pilot:
        await shows(pilot, "resumed: one")
        assert "its model was" not in screen_text(app), "no model is loaded yet to tell from"
        opened.set()
        await loaded(pilot)
        await shows(pilot, "Last turn", "steps/s")
        assert app.chat.state.turn.record == begun
        assert "its model was" not in screen_text(app)


async def test_a_long_conversation_comes_back_with_its_beginning_as_text(make_app: MakeApp, store: Store) -> None:
    texts = [f"{what} {number}" for number in range(300) for what in ("question", "answer")]
    talk(store, *texts)
    session = FakeSession()
    app = make_app(session)
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await pilot.press("ctrl+o", "enter")
        await shows(pilot, "answer 299")
        await wait_until(pilot, lambda: len(contents(session)) == 600)
        assert contents(session) == texts
        assert len(app.chat.query("TurnBlock")) == 20
        assert [text.count("\n\nanswer") for text in app.chat.transcript.earlier.texts] == [1] * 280


# The list


async def chats(pilot: Pilot[int]) -> None:
    await loaded(pilot)
    await pilot.press("ctrl+o")
    await wait_until(pilot, lambda: isinstance(pilot.app.screen, ChatsScreen))


@pytest.fixture
def three(store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Three conversations of set days."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    for day, (question, answer) in enumerate(
        (
            ("What is tree verification?", "One target pass over all drafted paths; the longest matching one is kept."),
            ("Rename a column in SQLite", "ALTER TABLE t RENAME COLUMN a TO b"),
            ("日本語で説明してください", "はい。投機的デコーディングは、小さなモデルが下書きを作ります。"),
        )
    ):
        at = 1_760_000_000.0 + 86_400 * day
        card = Card(question, model="demo pair", id=f"c{day}", created=at, updated=at)
        store.begin(card)
        node = Node("user", question, id=f"q{day}", created=at)
        store.add(card.id, node)
        store.add(card.id, Node("assistant", answer, node.id, report=a_report(answer), id=f"a{day}", created=at + 60))
    return store


async def test_the_list_at_each_size(
    make_app: MakeApp,
    three: Store,
    snapshot: Callable[[str, str], None],
    picture: Callable[[str, DFlashApp], None],
) -> None:
    app = make_app()
    async with app.run_test(size=SIZES[0]) as pilot:
        await chats(pilot)
        for size in SIZES:
            await pilot.resize_terminal(*size)
            snapshot(f"{size[0]}x{size[1]}-chats", await settled(pilot))
            if size == (120, 40):
                picture("chats", app)
        await pilot.press("slash", *"verif")
        for size in SIZES:
            await pilot.resize_terminal(*size)
            await shows(pilot, "1 found")
            snapshot(f"{size[0]}x{size[1]}-chats-search", await settled(pilot))


@smallest
async def test_the_list_without_color(
    no_color: None, make_app: MakeApp, three: Store, size: Size, snapshot: Callable[[str, str], None]
) -> None:
    app = make_app()
    async with app.run_test(size=size) as pilot:
        await chats(pilot)
        await pilot.press("down")
        snapshot(f"bare-{size[0]}x{size[1]}-chats", await settled(pilot, bare_text))


async def test_a_branched_conversation_at_each_size(
    make_app: MakeApp, three: Store, snapshot: Callable[[str, str], None]
) -> None:
    three.add("c2", Node("user", "In English, please", "a2", id="q3"))
    three.add("c2", Node("assistant", "Yes.", "q3", report=a_report(), id="a3"))
    three.add("c2", Node("assistant", "Yes: a small model drafts.", "q3", outcome=CUT_OFF, id="a4"))
    three.add("c2", Node("user", "In French", "a2", id="q4"))
    three.go("c2", "a4")
    app = make_app()
    async with app.run_test(size=SIZES[0]) as pilot:
        await chats(pilot)
        await pilot.press("enter")
        await shows(pilot, "In English, please", "‹1/2›")
        await pilot.press("alt+up")
        for size in SIZES:
            await pilot.resize_terminal(*size)
            snapshot(f"{size[0]}x{size[1]}-branched", await settled(pilot))


async def test_search_rename_and_delete(make_app: MakeApp, three: Store) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await chats(pilot)
        await pilot.press("slash", *"column")
        await shows(pilot, "1 found", "ALTER TABLE")
        await pilot.press("enter", "r")
        await shows(pilot, "A new title")
        await pilot.press("end", *[*" now"], "enter")
        await shows(pilot, "Rename a column in SQLite now")
        assert "Rename a column in SQLite now" in titles(three)
        await pilot.press("d")
        await wait_until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await shows(pilot, "Delete “Rename a column in SQLite now”, 2 messages?")
        await pilot.press("escape")
        assert len(titles(three)) == 3
        await pilot.press("d", "enter")
        await shows(pilot, "0 found", "No conversation has these words.")
        assert len(titles(three)) == 2
        await pilot.press("slash", "escape")
        await shows(pilot, "2 conversations")
        await pilot.press("escape")
        await wait_until(pilot, lambda: not isinstance(app.screen, ChatsScreen))


async def test_the_title_row_shows_a_new_title_at_once(make_app: MakeApp) -> None:
    async with talking(make_app, ("one", "answer one"), size=(80, 24)) as (app, pilot, _):
        row = app.chat.query_one(TitleRow)
        assert row.conversation == "one"
        await send(pilot, "/rename By command")
        await wait_until(pilot, lambda: row.conversation == "By command")
        await pilot.press("ctrl+o", "r")
        await shows(pilot, "A new title")
        await pilot.press("ctrl+u", *"List", "enter")
        await wait_until(pilot, lambda: row.conversation == "List")


async def test_deleting_the_present_conversation_leaves_an_empty_one(make_app: MakeApp, store: Store) -> None:
    async with talking(make_app, ("one", "answer one"), size=(80, 24)) as (_, pilot, session):
        await pilot.press("ctrl+o")
        await shows(pilot, "● one")
        await pilot.press("d", "enter")
        await shows(pilot, "No conversation yet")
        await pilot.press("escape")
        await shows(pilot, "a chat that drafts ahead")
        assert contents(session) == []
        await says(pilot, session, "two", "answer two")
        assert titles(store) == ["two"]


async def test_the_present_conversation_is_not_deleted_while_a_message_waits_in_it(
    make_app: MakeApp, store: Store
) -> None:
    session, ready, loads = FakeSession(), threading.Event(), []

    def load(progress: Callable[[str, float], None]) -> FakeSession:
        loads.append(len(loads))
        if len(loads) > 1:
            ready.wait()
        return session

    app = make_app(load=load)
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await says(pilot, session, "one", "answer one")
        await pilot.press("ctrl+o")
        await shows(pilot, "● one")
        await pilot.press("d")
        await wait_until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        app.chat.parts.program.reload()
        await app.chat.parts.sending.send("two", "two")
        await pilot.press("enter")
        await shows(pilot, "messages are queued for the model")
        await pilot.press("d")
        assert isinstance(app.screen, ChatsScreen), "it is not even asked"
        assert titles(store) == ["one"]
        await pilot.press("escape")
        ready.set()
        await wait_until(pilot, lambda: contents(session)[-2:] == ["two", "answer one"])
        await idle(pilot)


async def test_nothing_waits_any_more_when_the_widgets_of_a_conversation_go(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load that ended just then would send the next message of the queue, whose widget is gone."""
    ready, waited = threading.Event(), list[bool]()

    def load(progress: Callable[[str, float], None]) -> FakeSession:
        ready.wait()
        return FakeSession()

    app = make_app(load=load)
    async with app.run_test(size=(80, 24)) as pilot:
        await ask(pilot, "hi")
        await wait_until(pilot, lambda: app.chat.state.waiting)
        clear = app.chat.transcript.clear

        async def cleared() -> None:
            waited.append(app.chat.state.waiting)
            await clear()

        monkeypatch.setattr(app.chat.transcript, "clear", cleared)
        await pilot.press("ctrl+n")
        await wait_until(pilot, lambda: bool(waited))
        ready.set()
        await loaded(pilot)
    assert waited == [False]


async def test_export_and_rename_by_command(
    make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    monkeypatch.chdir(tmp_path)
    session = FakeSession()
    app = make_app(session)
    async with app.run_test(size=(200, 60)) as pilot:
        await loaded(pilot)

        async def command(text: str, *seen: str) -> None:
            app.chat.prompt.text = text
            await pilot.press("enter")
            await shows(pilot, *seen)
            app.chat.prompt.text = ""

        await command("/export md", "nothing to export yet")
        await command("/rename x", "no title yet")
        await says(pilot, session, "What is it?", "An *answer*.")
        await command("/export md", "What-is-it.md")
        await command("/export md", "What-is-it-2.md")
        await command("/export json all.json", "all.json")
        await command("/export json all.json", "exists already")
        await command(f"/export svg {tmp_path}/no/a.svg", "cannot be written: No such file or directory")
        await command("/export doc", "write /export md, /export json or /export svg")
        await command("/import", "write /import FILE")
        await command("/import none.json", "none.json cannot be read: No such file or directory")
        await command("/import What-is-it.md", "What-is-it.md: not an export of conversations")
        await command("/import all.json", "conversations imported: 1")
        assert titles(store) == ["What is it?"] * 2
        await command("/rename A Title", "renamed: A Title")
        await command("/version 3", "write /version -")
        await pilot.press("ctrl+o", "x")
        await shows(pilot, "just the format")
        await pilot.press("ctrl+u", *"svg", "enter")
        await shows(pilot, "A-Title.svg")
    assert "An *answer*." in (tmp_path / "What-is-it.md").read_text()
    assert titles(store).count("A Title") == 1
    assert sorted(path.name for path in tmp_path.glob("*.*")) == [
        "A-Title.svg", "What-is-it-2.md", "What-is-it.md", "all.json",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "why"), [("notes.md", "not an export of conversations"), ("folder", "is a folder"), ("none", "No such")]
)
async def test_an_import_that_fails_keeps_what_was_typed(
    make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, why: str
) -> None:
    (tmp_path / "notes.md").write_text("what was noted")
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    app = make_app()
    async with app.run_test(size=(200, 60)) as pilot:
        await loaded(pilot)
        await send(pilot, f"/import {name}")
        await shows(pilot, f"✗ {name}", why, f"❯ /import {name}")


async def test_an_export_is_made_beside_the_app_and_reads_records_for_json_alone(
    make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    records: list[str] = []

    def rendered(conversations: Sequence[StoredConversation], kind: str) -> bytes:
        threads.append(threading.current_thread())
        records.extend(kind for one in conversations if one.records)
        return render(conversations, kind)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(files, "render", rendered)
    async with talking(make_app, ("one", "answer one"), size=(200, 60)) as (app, pilot, _):
        for kind in ("md", "json", "svg"):
            await send(pilot, f"/export {kind}")
            await shows(pilot, f"/one.{kind}")
        await pilot.press("ctrl+o", "x")
        await wait_until(pilot, lambda: isinstance(app.screen, LineScreen))
        await pilot.press("ctrl+u", *"md", "enter", "escape")
        await wait_until(pilot, lambda: app.screen is app.chat and len(threads) == 4)
    assert threading.main_thread() not in threads
    assert records == ["json"]


async def test_an_export_that_breaks_off_leaves_no_file_in_the_way(
    make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> bytes:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.chdir(tmp_path)
    async with talking(make_app, ("one", "answer one"), size=(200, 60)) as (app, pilot, _):
        with monkeypatch.context() as patch:
            patch.setattr(files, "render", full)
            await send(pilot, "/export md one.md")
            await shows(pilot, "✗ one.md cannot be written: No space left on device; name another place")
        assert not (tmp_path / "one.md").exists()
        assert app.chat.prompt.text == "/export md one.md", "what was typed is kept"
        await pilot.press("enter")
        await shows(pilot, "written:")
    assert (tmp_path / "one.md").read_text().startswith("# one")


async def test_quitting_does_not_wait_for_an_export(
    make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(*_: object) -> bytes:
        begun.set()
        go_on.wait(30.0)
        return b"# one"

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(files, "render", slow)
    async with talking(make_app, ("one", "answer one"), size=(200, 60)) as (_, pilot, _):
        await send(pilot, "/export md one.md")
        await wait_until(pilot, begun.is_set)
        await pilot.press("ctrl+q")
    assert not (tmp_path / "one.md").exists()
    assert any_aside(), "the export was waited for"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    go_on.set()
    for thread in threading.enumerate():
        if thread.name == ASIDE:
            thread.join(30.0)
    assert not [*(tmp_path / "elsewhere").iterdir()], "a name is one in the folder where it was typed"
    assert not [*tmp_path.glob("*.md"), *tmp_path.glob(".*.part")], "it goes on writing to a file that is gone"


async def test_down_in_the_search_goes_to_the_list(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await ask(pilot, "hello")
        await idle(pilot)
        await pilot.press("ctrl+o", "slash", "down")
        assert app.focused is app.screen.query_one("#chats-list")


@pytest.mark.parametrize("size", [(80, 1), (2, 60)])
async def test_lists_without_room_for_a_line_have_no_pages(make_app: MakeApp, size: tuple[int, int]) -> None:
    app = make_app()
    async with app.run_test(size=size) as pilot:
        await loaded(pilot)
        for page in ("themes", "models", "chats"):
            app.chat.action_open(page)
            await pilot.pause()
            await pilot.press("pageup", "pagedown", "pageup", "escape")
        await pilot.press("ctrl+p")
        await pilot.pause()
        await pilot.press("t", "pageup", "pagedown")
        assert app.is_running


# After a crash


async def test_a_conversation_that_was_cut_off_is_offered(make_app: MakeApp, store: Store, tmp_path: Path) -> None:
    card, nodes = talk(store, "first question", "answer")
    for number in (1, 2):
        place = Place(card.id, "q2", "a2", "second question", nodes[1].id, "pair") if number == 2 else None
        killed_app(tmp_path / "data", f"half a thought {number}", place=place)
    session = FakeSession()
    app = make_app(session)
    async with app.run_test(size=(80, 24)) as pilot:
        await shows(pilot, "The program ended in the middle of an answer: first question")
        await pilot.press("enter")
        await loaded(pilot)
        await shows(pilot, "❯ second question", CUT_OFF)
        assert app.chat.prompt.text == "half a thought 2"
        await pilot.press("up")
        assert app.chat.prompt.text == "half a thought 1"
        await wait_until(pilot, lambda: len(contents(session)) == 4)
        await pilot.press("ctrl+r")
        await idle(pilot)
        await shows(pilot, "‹2/2›")
        assert contents(session) == ["first question", "answer", "second question", ANSWER]


async def test_text_that_is_typed_over_the_offer_goes_into_the_prompt(
    make_app: MakeApp, store: Store, tmp_path: Path
) -> None:
    """Regression: letters were lost, and the y of a word opened the conversation."""
    card, nodes = talk(store, "first question", "answer")
    killed_app(tmp_path / "data", "", place=Place(card.id, "q2", "a2", "second question", nodes[1].id, "pair"))
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await shows(pilot, "The program ended in the middle of an answer: first question")
        await pilot.press(*"story")
        await wait_until(pilot, lambda: app.chat.prompt.text == "story")
        assert not app.chat.transcript.turns


async def test_a_cut_off_answer_brings_its_parameters_back(make_app: MakeApp, tmp_path: Path) -> None:
    knobs = Knobs(drafting="auto up to 40", p_min=0.1)
    place = Place("c", "q", "a", "a question", None, "Qwen3.5-demo Q8_0 + DFlash-b16")
    killed_app(tmp_path / "data", place=place, lines=[*lines(turn_of([step_of(knobs=knobs)], knobs=knobs))][:-1])
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await shows(pilot, "The program ended in the middle of an answer: a question")
        await pilot.press("enter")
        await shows(pilot, CUT_OFF)
        await wait_until(pilot, lambda: app.chat.state.knobs == knobs)


async def test_a_turn_that_was_cut_off_before_it_was_read_leaves_the_context(make_app: MakeApp) -> None:
    """Regression: the title row said "ctx 0" where the last turn had not been read when the program was killed."""
    async with talking(make_app, ("one", "answer one")) as (app, _, _):
        gauges, turn = app.chat.parts.gauges, app.chat.state.turn
        assert turn.record is not None
        report = turn.record.report
        assert report is not None
        gauges.stand(report)
        turn.recall(replace(turn.record, pieces=(), report=None))
        assert gauges.used == report.stats.prompt_tokens + report.stats.tokens > 0


async def test_a_new_conversation_has_no_figures_yet(make_app: MakeApp) -> None:
    async with talking(make_app, ("one", "answer one")) as (app, pilot, _):
        await shows(pilot, "Last turn")
        await pilot.press("ctrl+n")
        await wait_until(pilot, lambda: "tok/s" not in screen_text(app) and "Last turn" not in screen_text(app))
        await pilot.press("f3")
        await shows(pilot, "No turn yet")


async def test_a_long_question_is_asked_whole(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await app.push_screen(ConfirmScreen("zebra " * 30 + "end?", "delete", "keep it"))
        await shows(pilot, "end?", "Enter delete   Esc keep it")
        assert screen_text(app).count("zebra") == 30


async def test_the_offer_can_be_declined(make_app: MakeApp, store: Store, tmp_path: Path) -> None:
    killed_app(tmp_path / "data", place=Place("c", "q", "a", "a question"))
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await shows(pilot, "The program ended")
        await pilot.press("escape")
        await shows(pilot, "it is in the list", "Last    a question")
    assert titles(store) == ["a question"]
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        assert "The program ended" not in screen_text(app)
