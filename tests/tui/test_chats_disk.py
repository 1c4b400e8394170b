"""Trouble with the disk under a conversation: full, damaged, taken away."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dflash_tui.app import DFlashApp
from dflash_tui.application.conversations.store import Store
from support.grids import full
from support.stored import talk

from .fake import ANSWER, FakeSession
from .support import contents, loaded, says, shows, talking, wait_until

MakeApp = Callable[..., DFlashApp]
Size = tuple[int, int]


async def test_a_full_disk_is_said_once_and_the_conversation_goes_on(make_app: MakeApp, store: Store) -> None:
    async with talking(make_app, ("one", "answer one"), size=(120, 40), notifications=True) as (app, pilot, session):
        disk = app.chat.state.conversation.store._disk
        assert disk is not None
        [(pages,)] = disk.execute("PRAGMA page_count").fetchall()
        disk.execute(f"PRAGMA max_page_count = {pages}")
        await says(pilot, session, "two", "answer two " * 2000)
        await wait_until(pilot, lambda: len(app._notifications) == 1)
        [note] = app._notifications
        assert "database or disk is full; they stay in memory until the app closes, and /export" in note.message
        await says(pilot, session, "three", "answer three")
        assert len(app._notifications) == 1, "once"
        assert contents(session)[::2] == ["one", "two", "three"]
        await pilot.press("ctrl+o")
        await shows(pilot, "● one", "6 messages")
        await pilot.press("escape", "ctrl+q")
        await shows(pilot, "quitting loses it", "/export")
        await pilot.press("escape")
        disk.execute("PRAGMA max_page_count = 1073741823")
        await says(pilot, session, "four", "answer four")
        await wait_until(pilot, lambda: any("nothing is missing" in one.message for one in app._notifications))
        assert len(store.branches(store.list()[0].card.id).path) == 8


async def test_a_damaged_database_is_kept_aside_and_the_app_starts(make_app: MakeApp, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "conversations.db").write_bytes(b"no database")
    session = FakeSession()
    app = make_app(session)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await loaded(pilot)
        [note] = app._notifications
        assert "conversations.db is damaged" in note.message
        await says(pilot, session, "one", "answer one")
    assert (tmp_path / "data" / "conversations.damaged.db").read_bytes() == b"no database"
    with sqlite3.connect(tmp_path / "data" / "conversations.db") as db:
        assert db.execute("SELECT count(*) FROM message").fetchone() == (2,)


def damage(sql: str) -> Callable[[Path], None]:
    def spoil(file: Path) -> None:
        db = sqlite3.connect(file, isolation_level=None)
        db.execute("PRAGMA writable_schema = ON")
        db.execute(sql)
        db.execute("PRAGMA schema_version = 4711")
        db.close()

    return spoil


def flip(place: int) -> Callable[[Path], None]:
    def spoil(file: Path) -> None:
        data = bytearray(file.read_bytes())
        data[place] ^= 0x28
        file.write_bytes(data)

    return spoil


DAMAGE = [
    flip(18),
    flip(47),
    flip(63),
    flip(103),
    damage("UPDATE sqlite_master SET sql = replace(sql, 'title TEXT', 'titld TEXT') WHERE name = 'conversation'"),
    damage("UPDATE conversation SET created = 'yesterday'"),
]


@pytest.mark.parametrize("spoil", [full(one) if at in (1, 2) else one for at, one in enumerate(DAMAGE)])
async def test_damage_costs_no_start_no_list_no_turn(
    make_app: MakeApp, tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    stored = Store(tmp_path / "data")
    talk(stored, "of before", "yes")
    assert stored.close()
    spoil(tmp_path / "data" / "conversations.db")
    session = FakeSession()
    app = make_app(session)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await loaded(pilot)
        await pilot.press("ctrl+o")
        await shows(pilot, "Conversations")
        await pilot.press("escape")
        await says(pilot, session, "one", "answer one")
        [note] = app._notifications
        assert "conversations.db is damaged" in note.message
        await pilot.press("ctrl+q")
    assert app.return_code in (0, None)
    assert Store(tmp_path / "data").list()[0].messages == 2
    assert (tmp_path / "data" / "conversations.damaged.db").exists()


def remove(file: Path) -> None:
    for one in file.parent.glob("conversations.db*"):
        one.unlink()


def replace(file: Path) -> None:
    stored = Store(file.parent / "backup")
    talk(stored, "of a backup", "yes")
    assert stored.close()
    (file.parent / "backup" / file.name).replace(file)


@pytest.mark.parametrize("change", [remove, replace, full(DAMAGE[-2]), DAMAGE[-1]])
async def test_the_conversation_on_the_screen_outlives_its_file(
    make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    monkeypatch.setattr("dflash_tui.chat.conversation.LOOK_S", 0.05)
    stored = Store(tmp_path / "data")
    talk(stored, "of before", "yes")
    assert stored.close()
    session = FakeSession()
    app, told = make_app(session), list[str]()
    notify = app.notify

    def telling(message: str, **options: Any) -> None:
        told.append(message)
        notify(message, **options)

    monkeypatch.setattr(app, "notify", telling)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await loaded(pilot)
        await says(pilot, session, "one", ANSWER)
        change(tmp_path / "data" / "conversations.db")
        if change in (remove, replace):
            await wait_until(pilot, lambda: len(told) == 1)
            assert "while the program had it open" in told[0]
        await pilot.press("ctrl+o")
        await shows(pilot, "● one", "2 messages")
        await pilot.press("escape", "f4")
        await pilot.pause()
        await pilot.press("escape", "alt+i")
        await pilot.pause()
        await pilot.press("escape")
        await says(pilot, session, "two", "answer two")
        assert len(told) == 1, "once"
        await pilot.press("ctrl+q")
    stored = Store(tmp_path / "data")
    [one] = [entry for entry in stored.list() if entry.card.title == "one"]
    path = stored.branches(one.card.id).path
    assert [node.content for node in path] == ["one", ANSWER, "two", "answer two"]
    assert all(stored.record(node.id) for node in path[1::2])
    assert stored.problem() == ""


async def test_steps_of_a_turn_whose_record_is_gone(make_app: MakeApp, tmp_path: Path) -> None:
    session = FakeSession()
    app = make_app(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await says(pilot, session, "one", ANSWER)
    session = FakeSession()
    app = make_app(session)
    async with app.run_test(size=(120, 40)) as pilot:
        await loaded(pilot)
        await pilot.press("ctrl+o", "enter")
        await shows(pilot, "resumed: one")
        remove(tmp_path / "data" / "conversations.db")
        for key in ("f3", "f4", "alt+i", "right", "left", "escape", "escape"):
            await pilot.press(key)
            await pilot.pause()
        await says(pilot, session, "two", "answer two")
    assert len(Store(tmp_path / "data").list()) == 1
