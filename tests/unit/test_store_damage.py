"""Damage anywhere in the file of conversations: the file is set aside with one line, and the store goes on."""

from __future__ import annotations

import contextlib
import random
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from dflash_core.errors import DFlashError, FormatError
from dflash_core.record import pack
from dflash_tui.application.conversations.branches import Branches, Node
from dflash_tui.application.conversations.store import Card, Store, StoredConversation
from dflash_tui.application.conversations.store.rows import MAX_TITLE
from support.stored import a_turn, stored_file, talk, titles

FILE = "conversations.db"
COUNT = 6
TALKS = [(f"question {number} " + "word " * 60, f"answer {number}") for number in range(COUNT)]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return stored_file(tmp_path_factory.mktemp("sound"), TALKS)


def test_the_file_is_the_same_in_each_run(sound: bytes, tmp_path: Path) -> None:
    assert stored_file(tmp_path, TALKS) == sound


def use(folder: Path) -> str:
    """Do everything that the app does with a store, on a file that may be damaged. Returns the messages about it."""
    store = Store(folder)
    for entry in store.list():
        conversation = entry.card.id
        ending, path = store.ending(conversation), store.branches(conversation).path
        assert [node.id for node in ending] == [node.id for node in path]
        for message in store.recorded(conversation):
            with contextlib.suppress(FormatError):
                store.record(message)
    titles(store, "word")
    titles(store, "uestio")
    card, nodes = talk(store, "begun behind the damage", "yes")
    store.keep(nodes[1].id, pack(a_turn()))
    store.rename(card.id, "renamed")
    if len(store.list()) > 1:
        store.delete(store.list()[-1].card.id)
    said = store.problem()
    assert "\n" not in said
    assert store.on_disk
    assert store.close()
    again = Store(folder)
    assert "renamed" in titles(again)
    assert again.branches(card.id).path == tuple(nodes)
    assert again.problem() == "", "what is new is in order"
    assert again.close()
    return said


def flips(data: bytes, places: range, count: int, seed: int) -> list[tuple[int, int]]:
    """Places that hold something, and another value for each."""
    draw = random.Random(seed)
    written = [place for place in places if data[place] or place < 100]
    return [
        (place, draw.choice([n for n in range(256) if n != data[place]])) for place in draw.choices(written, k=count)
    ]


@pytest.mark.parametrize(
    ("places", "count", "least"),
    [(range(100), 40, 10), (range(100, 4096), 60, 20), (range(4096, 1 << 20), 40, 3)],
    ids=["header", "schema", "pages"],
)
def test_single_bytes(sound: bytes, tmp_path: Path, places: range, count: int, least: int) -> None:
    taken = 0
    within = range(places.start, min(places.stop, len(sound)))
    for number, (place, value) in enumerate(flips(sound, within, count, seed=9)):
        folder = tmp_path / str(number)
        folder.mkdir()
        data = bytearray(sound)
        data[place] = value
        (folder / FILE).write_bytes(data)
        said = use(folder)
        if said:
            taken += 1
            assert f"{FILE} is " in said, (place, value, said)
            kept = list(folder.glob("conversations.*.db"))
            assert [file.read_bytes() for file in kept] == [bytes(data)], (place, value)
    assert taken >= least


def spoil(sound: bytes, folder: Path, *statements: str) -> None:
    (folder / FILE).write_bytes(sound)
    db = sqlite3.connect(folder / FILE, isolation_level=None)
    db.execute("PRAGMA writable_schema = ON")
    for statement in statements:
        db.execute(statement)
    db.close()


SCHEMA = "UPDATE sqlite_master SET sql = replace(sql, '{}', '{}') WHERE name = '{}'"


@pytest.mark.parametrize(
    "statement",
    [
        SCHEMA.format("title TEXT", "titld TEXT", "conversation"),
        SCHEMA.format("''user''", "''usep''", "message"),
        SCHEMA.format("content TEXT NOT NULL", "content TEXT XOT NULL", "message"),
        SCHEMA.format("CREATE", "CRATE", "turn"),
        SCHEMA.format("fts5", "fts6", "message_content"),
        SCHEMA.format("old.number", "old.numbes", "message_content_gone"),
        "UPDATE sqlite_master SET name = 'messagd', tbl_name = 'messagd' WHERE name = 'message'",
        "UPDATE sqlite_master SET sql = x'ff00fe' WHERE name = 'message'",
        "DELETE FROM sqlite_master WHERE name = 'message_of'",
        "DELETE FROM sqlite_master WHERE name = 'message_content_idx'",
        "PRAGMA user_version = 0",
        "PRAGMA user_version = 1",
        "PRAGMA user_version = 77",
    ],
)
def test_a_schema_that_is_not_ours_is_set_aside(sound: bytes, tmp_path: Path, statement: str) -> None:
    spoil(sound, tmp_path, statement)
    data = (tmp_path / FILE).read_bytes()
    store = Store(tmp_path)
    found, problem = sorted(titles(store)), store.problem()
    assert f"{FILE} is damaged" in problem
    assert (tmp_path / "conversations.damaged.db").read_bytes() == data
    if "could be read" in problem:
        assert found == [f"number {number}" for number in range(COUNT)]
        assert "12 of its messages could be read and are in it" in problem
    assert store.close()
    assert use(tmp_path) == ""


def test_what_statements_can_read_of_a_damaged_file_is_copied(sound: bytes, tmp_path: Path) -> None:
    spoil(sound, tmp_path, "DELETE FROM sqlite_master WHERE name = 'message_of'")
    store = Store(tmp_path)
    assert len(titles(store, "question")) == COUNT
    assert all(store.record(message) for entry in store.list() for message in store.recorded(entry.card.id))
    assert "12 of its messages could be read and are in it" in store.problem()


OWN_TABLES = re.compile(rb"CREATE TABLE '(?:message_content|conversation_title)_\w+'\(([^)]*)\)?")
NAMES = re.compile(rb"(?:^|, )(\w+)")


def test_the_tables_of_the_search_are_not_as_it_writes_them(sound: bytes, tmp_path: Path) -> None:
    """They are not checked on opening: a wrong name in them is found when a row is written."""
    columns = [
        found.start(1) + name.start(1) for found in OWN_TABLES.finditer(sound) for name in NAMES.finditer(found[1])
    ]
    assert len(columns) >= 2 * 8
    said = ""
    for place in columns:
        folder = tmp_path / str(place)
        folder.mkdir()
        data = bytearray(sound)
        data[place] ^= 1
        (folder / FILE).write_bytes(data)
        said += use(folder)
    assert "SQL logic error" in said, "nothing but the writing shows it"


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("conversation", "created", "'yesterday'"),
        ("conversation", "updated", "1e308"),
        ("conversation", "updated", "-1"),
        ("conversation", "title", "x'ff'"),
        ("conversation", "title", "CAST(x'61ff62' AS TEXT)"),
        ("conversation", "leaf", "x'00'"),
        ("message", "created", "'now'"),
        ("message", "content", "x'00ff'"),
        ("message", "content", "CAST(x'61ff62' AS TEXT)"),
        ("message", "parent", "x'00'"),
        ("message", "thinking", "x'00'"),
        ("message", "report", "x'00'"),
        ("turn", "record", "'a text'"),
    ],
)
def test_a_value_of_another_type(sound: bytes, tmp_path: Path, table: str, column: str, value: str) -> None:
    spoil(sound, tmp_path, f"UPDATE {table} SET {column} = {value} WHERE rowid = 1")
    store = Store(tmp_path)
    assert len(store.list()) >= COUNT - 1, "one bad value costs its own row"
    assert len(store.branches(store.list()[0].card.id)) == 2
    assert store.close()
    assert "" in (use(tmp_path), use(tmp_path))


def test_damage_while_the_file_is_open(sound: bytes, tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(sound)
    card, branches = Card("on the screen"), Branches()
    branches.add(Node("user", "asked"))
    store = Store(tmp_path, lambda: StoredConversation(card, branches, {}))
    other = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    other.execute("PRAGMA writable_schema = ON")
    other.execute(SCHEMA.format("old.number", "old.numbes", "message_content_gone"))
    other.execute("PRAGMA schema_version = 4711")
    other.close()
    store.delete(store.list()[0].card.id)
    assert titles(store)[0] == "on the screen"
    assert len(titles(store)) == COUNT
    assert store.problem().endswith("12 of its messages could be read and are in it, as is the present conversation")
    assert store.branches(card.id).path == branches.path


def held(text: str = "on the screen") -> StoredConversation:
    branches = Branches([Node("user", text)])
    branches.add(Node("assistant", "answered", branches.leaf))
    assert branches.leaf is not None
    return StoredConversation(Card(text), branches, {branches.leaf: pack(a_turn())})


def remove(file: Path) -> None:
    file.unlink()


def remove_all(file: Path) -> None:
    for one in file.parent.iterdir():
        one.unlink()


def remove_folder(file: Path) -> None:
    remove_all(file)
    file.parent.rmdir()


def empty(file: Path) -> None:
    file.write_bytes(b"")


def set_aside(file: Path) -> None:
    file.rename(file.with_name("elsewhere.db"))


def replace(file: Path) -> None:
    """As a tool that restores a backup does: the log of the old file stays beside the new one."""
    backup = file.parent / "backup"
    store = Store(backup)
    talk(store, "of the backup", "yes")
    assert store.close()
    (backup / FILE).replace(file)


def replace_by_rubbish(file: Path) -> None:
    (file.parent / "rubbish").write_bytes(b"rubbish" * 1000)
    (file.parent / "rubbish").replace(file)


MOVES = [remove, remove_all, remove_folder, empty, set_aside, replace, replace_by_rubbish]


@pytest.mark.parametrize("does", ["write", "read", "look", "close"])
@pytest.mark.parametrize("move", MOVES)
def test_a_file_that_somebody_moves_while_it_is_open(tmp_path: Path, move: Callable[[Path], None], does: str) -> None:
    present, folder = held(), tmp_path / "data"
    store = Store(folder, lambda: present)
    store.put(present)
    talk(store, "another conversation", "yes")
    move(folder / FILE)
    if does == "write":
        store.keep(present.branches.nodes[1].id, pack(a_turn()))
    elif does == "read":
        assert store.find(present.card.id) == present.card
    elif does == "look":
        store.look()
    problem = store.problem()
    if does != "close":
        assert f"{FILE} " in problem
        assert "\n" not in problem
        assert "the present conversation" in problem
        store.add(present.card.id, Node("user", "goes on", present.branches.leaf))
        assert store.problem() == ""
    assert store.close()
    store = Store(folder)
    assert store.problem() == ""
    assert "on the screen" in titles(store)
    assert store.branches(present.card.id).nodes[:2] == present.branches.nodes
    assert store.record(present.branches.nodes[1].id) == a_turn()
    if move is replace:
        assert "of the backup" in titles(store)


def test_a_log_that_is_taken_away_costs_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    talk(store, "one", "yes")
    (tmp_path / f"{FILE}-wal").unlink()
    talk(store, "two", "yes")
    assert store.close()
    store = Store(tmp_path)
    assert titles(store) == ["two", "one"]
    assert store.problem() == ""


def test_a_file_that_is_removed_from_a_folder_that_is_then_closed(tmp_path: Path) -> None:
    """No new file can be begun: the conversation goes on in memory, and to the disk once there is one."""
    present, folder = held(), tmp_path / "data"
    store = Store(folder, lambda: present)
    store.put(present)
    remove_folder(folder / FILE)
    folder.write_text("in the way")
    store.add(present.card.id, Node("user", "goes on", present.branches.leaf))
    assert not store.on_disk
    assert "conversations cannot be saved" in store.problem()
    folder.unlink()
    store.rename(present.card.id, "kept in the end")
    assert "are saved in" in store.problem()
    assert store.close()
    store = Store(folder)
    assert titles(store) == ["kept in the end"]
    assert len(store.branches(present.card.id)) == 3


def test_a_text_that_is_larger_than_a_database_takes(tmp_path: Path) -> None:
    store = Store(tmp_path)
    card, nodes = talk(store, "before", "yes")
    assert store._disk is not None
    store._disk.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 100_000)
    with pytest.raises(DFlashError, match="a text of this size cannot be saved"):
        store.add(card.id, Node("user", "x" * 200_000, nodes[1].id))
    assert store.on_disk
    assert store.problem() == ""
    assert titles(store) == ["before"]
    store.rename(card.id, "t" * 200_000)
    assert len(titles(store)[0]) == MAX_TITLE
