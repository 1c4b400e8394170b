"""The store in trouble: damaged, newer and foreign files, folders without write access, a full disk."""

from __future__ import annotations

import os
import resource
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dflash_core.record import pack
from dflash_tui.application.conversations.branches import Node
from dflash_tui.application.conversations.store import Card, Store
from dflash_tui.application.conversations.store.schema import VERSION
from support.stored import a_turn, talk, titles

FILE = "conversations.db"
NOBODY = 65534


@contextmanager
def without_room(store: Store) -> Iterator[None]:
    """Let the file grow no further: SQLite then reports a full disk."""
    connection = store._disk
    assert connection is not None
    [(pages,)] = connection.execute("PRAGMA page_count").fetchall()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    yield
    connection.execute("PRAGMA max_page_count = 1073741823")


@contextmanager
def folder_of_another() -> Iterator[Path]:
    """A folder that can be read and not written. Root may write anywhere, so it becomes user "nobody" for a while."""
    folder = Path(tempfile.mkdtemp())
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def powerless(folder: Path) -> Iterator[None]:
    folder.chmod(0o555)
    user = os.geteuid()
    if user == 0:
        for file in folder.iterdir():
            file.chmod(0o644)
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)
        folder.chmod(0o755)


def fill(folder: Path, count: int = 40) -> list[str]:
    store = Store(folder)
    for number in range(count):
        talk(store, f"question {number} " + "word " * 100, f"answer {number}", title=f"number {number}")
    assert store.close()
    return [f"number {number}" for number in range(count)]


def a_leaf(path: Path, data: bytes) -> range:
    """Where in the file a middle page of the messages is: the child that a middle cell of the table's root names."""
    with sqlite3.connect(path) as db:
        [(root,)] = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'message'").fetchall()
    db.close()
    size = int.from_bytes(data[16:18], "big")
    start = (root - 1) * size
    assert data[start] == 5, "an inner page of a table"
    cells = int.from_bytes(data[start + 3 : start + 5], "big")
    at = start + 12 + 2 * (cells // 2)
    cell = start + int.from_bytes(data[at : at + 2], "big")
    child = int.from_bytes(data[cell : cell + 4], "big")
    return range((child - 1) * size, child * size)


@pytest.mark.parametrize("content", [b"", b"not a database at all", os.urandom(8192)])
def test_a_file_that_is_no_database_is_kept_aside(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    store = Store(tmp_path)
    problem = store.problem()
    if content:
        assert f"{FILE} is damaged (file is not a database); it was renamed to" in problem
        assert (tmp_path / "conversations.damaged.db").read_bytes() == content
        assert "\n" not in problem
    else:
        assert problem == "", "an empty file is what a crash before the first write leaves"
    talk(store, "goes on", "yes")
    assert store.problem() == "", "it is said once"
    assert store.close()
    assert titles(Store(tmp_path)) == ["goes on"]


def test_what_can_be_read_of_a_damaged_file_is_saved(tmp_path: Path) -> None:
    everything = fill(tmp_path)
    data = bytearray((tmp_path / FILE).read_bytes())
    page = a_leaf(tmp_path / FILE, data)
    data[page.start : page.stop] = os.urandom(len(page))
    (tmp_path / FILE).write_bytes(data)
    store = Store(tmp_path)
    assert sorted(titles(store)) == sorted(everything), "the list needs no message that is lost"
    texts = [node.content for entry in store.list() for node in store.branches(entry.card.id).nodes]
    problem = store.problem()
    assert "conversations.db is damaged (database disk image is malformed); it was renamed to" in problem
    assert "of its messages could be read and are in it" in problem
    assert 0 < len(texts) < 80
    assert (tmp_path / "conversations.damaged.db").read_bytes() == bytes(data)
    talk(store, "goes on")
    assert store.close()
    assert titles(Store(tmp_path))[0] == "goes on"


def test_a_second_damaged_file_does_not_take_the_place_of_the_first(tmp_path: Path) -> None:
    for content in (b"first", b"second"):
        (tmp_path / FILE).write_bytes(content)
        Store(tmp_path).close()
    assert sorted(file.read_bytes() for file in tmp_path.glob("conversations.damaged*.db")) == [b"first", b"second"]


def test_a_newer_file_is_kept_aside_untouched(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    with sqlite3.connect(tmp_path / FILE) as db:
        db.execute(f"INSERT INTO migration VALUES ({VERSION + 7}, '9.1', 0)")
        db.execute(f"PRAGMA user_version = {VERSION + 7}")
    db.close()
    data = (tmp_path / FILE).read_bytes()
    store = Store(tmp_path)
    assert store.problem() == (
        f"{FILE} is newer (dflash-tui 9.1 wrote it (schema {VERSION + 7}, this program has {VERSION})); "
        f"it was renamed to {tmp_path}/conversations.newer.db, and a new one is started"
    )
    assert (tmp_path / "conversations.newer.db").read_bytes() == data
    assert titles(store) == []


@pytest.mark.parametrize("version", [0, 1, VERSION])
def test_the_database_of_another_program_is_kept_aside(tmp_path: Path, version: int) -> None:
    with sqlite3.connect(tmp_path / FILE) as db:
        db.execute("CREATE TABLE bookmarks (url TEXT)")
        db.execute(f"PRAGMA user_version = {version}")
    db.close()
    store = Store(tmp_path)
    assert "is foreign (its tables are those of another program)" in store.problem()
    assert (tmp_path / "conversations.foreign.db").exists()
    talk(store, "goes on")


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    with folder_of_another() as folder:
        fill(folder, 3)
        with powerless(folder):
            store = Store(folder)
            problem = store.problem()
            assert f"conversations cannot be saved in {folder / FILE}" in problem
            assert titles(store) == ["number 2", "number 1", "number 0"], "what is there can still be read"
            talk(store, "goes on", "yes")
            assert titles(store, "goes")[0] == "goes on"
            assert store.problem() == ""
            assert not store.close(), "something could not be kept"
            assert not store.on_disk, "the program names no command that goes on with it"
        assert len(titles(Store(folder))) == 3


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "data")
    assert "Not a directory" in store.problem()
    card, _ = talk(store, "goes on", "yes")
    assert [node.content for node in store.branches(card.id).path] == ["goes on", "yes"]
    assert not store.on_disk


def test_a_full_disk_in_mid_write(tmp_path: Path) -> None:
    store = Store(tmp_path)
    before, _ = talk(store, "before", "yes")
    with without_room(store):
        card, nodes = talk(store, "during " * 2000, "yes", title="during")
        problem = store.problem()
        assert f"conversations cannot be saved in {tmp_path / FILE}: database or disk is full" in problem
        assert titles(store) == ["during", "before"]
        store.keep(nodes[1].id, pack(a_turn()))
        store.rename(before.id, "renamed")
        assert store.problem() == "", "it is said once"
        assert store.record(nodes[1].id) == a_turn()
        with sqlite3.connect(tmp_path / FILE) as db:
            assert db.execute("SELECT content FROM message").fetchall() == [("before",), ("yes",)]
    talk(store, "after")
    assert store.problem() == f"conversations are saved in {tmp_path / FILE} again; nothing is missing"
    assert store.on_disk
    assert store.close()
    store = Store(tmp_path)
    assert titles(store) == ["after", "during", "renamed"]
    assert store.branches(card.id).path == tuple(nodes)
    assert store.record(nodes[1].id) == a_turn()


def test_records_of_before_can_be_read_while_the_disk_is_full(tmp_path: Path) -> None:
    store = Store(tmp_path)
    _, nodes = talk(store, "before", "yes")
    store.keep(nodes[1].id, pack(a_turn()))
    with without_room(store):
        talk(store, "during " * 2000)
        assert not store.on_disk
        assert store.record(nodes[1].id) == a_turn()


def test_a_write_that_the_system_refuses(tmp_path: Path) -> None:
    """A limit on the size of files: the system's own refusal, in the middle of a transaction."""
    store = Store(tmp_path)
    talk(store, "before", "yes")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (tmp_path / f"{FILE}-wal").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 4096, limits[1]))
    try:
        card, nodes = talk(store, "during " * 5000, "yes", title="during")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "conversations cannot be saved" in store.problem()
    assert not store.on_disk
    assert store.close(), "there is room again"
    store = Store(tmp_path)
    assert titles(store) == ["during", "before"]
    assert store.branches(card.id).path == tuple(nodes)


def test_another_program_that_holds_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash_tui.application.conversations.store.database.PATIENCE_S", 0.05)
    store = Store(tmp_path)
    card, nodes = talk(store, "before", "yes")
    with sqlite3.connect(tmp_path / FILE, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        during = Node("user", "during", nodes[1].id)
        assert store.add(card.id, during)
        assert store.problem() == f"conversations cannot be saved in {tmp_path / FILE}: database is locked"
        assert store.branches(card.id).path == (*nodes, during)
        other.execute("ROLLBACK")
    other.close()
    assert store.close()
    assert Store(tmp_path).branches(card.id).path == (*nodes, during)


def test_a_fault_of_the_program_is_not_taken_for_one_of_the_disk(tmp_path: Path) -> None:
    store = Store(tmp_path)
    card, _ = talk(store, "text")
    with pytest.raises(sqlite3.IntegrityError):
        store.add(card.id, Node("nobody", "text"))  # type: ignore[arg-type]
    with pytest.raises(sqlite3.OperationalError, match="no such column"):
        store.read(lambda db: db.execute("SELECT nonsense FROM message"))
    assert store.problem() == ""
    store.begin(Card("goes on"))
    assert titles(store) == ["goes on", "text"]
