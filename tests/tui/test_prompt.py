"""The prompt: multi-line input, history, and nothing typed gets lost."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest
from textual.events import Key, Paste
from textual.pilot import Pilot
from textual.widgets import Input

from dflash_core.errors import ContextError, DFlashError, TemplateError
from dflash_core.knobs import Knobs
from dflash_tui.app import DFlashApp
from dflash_tui.application.conversations.current import CurrentConversation
from dflash_tui.application.conversations.history import History
from dflash_tui.application.session import Progress
from dflash_tui.screens.full import FullScreen, fullness
from dflash_tui.terminal.key_order import PasteParser
from dflash_tui.widgets.dialogs import LineScreen
from dflash_tui.widgets.flash import Flash
from dflash_tui.widgets.knob_row import KnobRow
from dflash_tui.widgets.literal import Static
from dflash_tui.widgets.prompt import Prompt
from support.grids import full
from support.stored import kill

from .fake import FakeSession
from .support import ask, idle, leave, loaded, screen_text, shows, taken, talking, wait_until

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


async def one_and_two(pilot: Pilot[int]) -> None:
    """Two answered messages, for the history."""
    await loaded(pilot)
    for text in ("one", "two"):
        await ask(pilot, text)
        await idle(pilot)


async def test_history_at_the_edges(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await one_and_two(pilot)
        prompt = app.chat.prompt
        await pilot.press("d", "up")
        assert prompt.text == "two"
        await pilot.press("up", "up", "up")
        assert prompt.text == "one"
        await pilot.press("down")
        assert prompt.text == "two"
        await pilot.press("down", "down")
        assert prompt.text == "d", "the draft comes back"


async def test_a_cancelled_command_leaves_no_slash(make_app: MakeApp, tmp_path: Path) -> None:
    """Neither in the prompt, nor at the next start where only the slash was typed; a begun command comes back."""
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        await pilot.press("/", "escape")
        assert app.chat.prompt.text == ""
        await pilot.press("/", "m", "escape")
        assert app.chat.prompt.text == "/m"
    for number, (typed, restored) in enumerate((("/", ""), ("/m", "/m"))):
        folder = tmp_path / str(number)
        killed = CurrentConversation(folder)
        killed.typed("written and deleted")
        killed.typed(typed)
        kill(killed.journal)
        assert "".join(CurrentConversation(folder).rescue().texts) == restored


async def test_changes_to_an_earlier_prompt_stay_while_others_are_looked_at(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await one_and_two(pilot)
        prompt = app.chat.prompt
        await pilot.press("up", "x", "up", "y")
        assert prompt.text == "oney"
        await pilot.press("down")
        assert prompt.text == "twox"
        await pilot.press("up")
        assert prompt.text == "oney"
        await pilot.press("enter")
        await idle(pilot)
        await pilot.press("up", "up")
        assert prompt.text == "two", "what was sent is as it was"
        assert app.chat.state.past.entries == ("one", "two", "oney")


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
        assert messages[0].startswith("conversations cannot be saved in ~/file/data/conversations.db: Not a dir")
        await shows(pilot, "Data folder")
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


def test_two_apps_share_the_history(tmp_path: Path) -> None:
    one, other = History(tmp_path), History(tmp_path)
    one.add("a")
    other.add("b")
    one.add("c")
    assert History(tmp_path).entries == ("a", "b", "c")
    assert one.entries == ("a", "c")


def test_two_apps_that_send_at_once_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one sends after this one has read what is stored, and before it writes."""
    one, other = History(tmp_path), History(tmp_path)
    sending = threading.Thread(target=other.add, args=("b",))
    stored = one._stored

    def read() -> tuple[str, ...]:
        found = stored()
        sending.start()
        sending.join(0.1)
        return found

    monkeypatch.setattr(one, "_stored", read)
    one.add("a")
    sending.join()
    assert set(History(tmp_path).entries) == {"a", "b"}


def test_what_is_no_regular_file_is_neither_read_nor_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a FIFO never ends, and a link to /dev/null would lead root to replace the device."""
    real = tmp_path / "fifo"
    os.mkfifo(real)
    (tmp_path / "prompts.jsonl").symlink_to(real)
    monkeypatch.setattr(Path, "read_text", lambda *args, **options: pytest.fail("it is read"))
    history = History(tmp_path)
    assert history.problem.endswith("cannot be read: it is not a regular file; starting without it")
    history.add("a")
    assert history.entries == ("a",)
    assert real.is_fifo()


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


def test_the_history_does_not_grow_without_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash_tui.application.conversations.history.KEEP", 10)
    history, sizes = History(tmp_path), []
    for number in range(100):
        history.add(f"prompt {number:02}")
        sizes.append((tmp_path / "prompts.jsonl").stat().st_size)
        assert history.previous("") == f"prompt {number:02}"
    assert max(sizes[50:]) <= max(sizes[:25])
    assert len(history.entries) <= 20
    newest = [f"prompt {number}" for number in range(90, 100)]
    assert list(History(tmp_path).entries[-10:]) == list(history.entries[-10:]) == newest
    assert [path.name for path in tmp_path.iterdir()] == ["prompts.jsonl"]
    assert (tmp_path / "prompts.jsonl").stat().st_mode & 0o077 == 0


def test_long_prompts_count_for_more(tmp_path: Path) -> None:
    history = History(tmp_path)
    for number in range(12):
        history.add(f"{number} " + "x" * 400_000)
    assert len(history.entries) < 6
    assert history.entries[-1].startswith("11 ")
    assert (tmp_path / "prompts.jsonl").stat().st_size < 2_500_000
    history.add("y" * 5_000_000)
    assert History(tmp_path).entries[-1] == "y" * 5_000_000, "the newest stays, however long"


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
