"""Earlier prompts: the arrow keys, the file, several apps at once."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot

from dflash_tui.app import DFlashApp
from dflash_tui.application.conversations.current import CurrentConversation
from dflash_tui.application.conversations.history import History
from support.stored import kill

from .fake import FakeSession
from .support import ask, idle, loaded, shows

MakeApp = Callable[..., DFlashApp]


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
