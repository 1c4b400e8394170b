"""Conversations in the store are read as written, are found, and are gone when deleted."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dflash_core.errors import DFlashError
from dflash_core.record import pack
from dflash_tui.application.conversations.branches import Branches, Node
from dflash_tui.application.conversations.store import Card, Store
from dflash_tui.application.conversations.store.rows import copy
from dflash_tui.application.conversations.store.schema import VERSION, migrate
from dflash_tui.application.conversations.tool_messages import ToolCall, ToolResult
from support.stored import a_report, a_turn, talk, titles


def _open_to_others(folder: Path) -> int:
    """What others than the user may do with the file of a store, as bits of its mode."""
    return (folder / "conversations.db").stat().st_mode & 0o077


def test_everything_of_a_turn_comes_back_after_a_restart(tmp_path: Path) -> None:
    report, record = a_report(), a_turn()
    card = Card("a title", "be brief", "pair + drafter")
    question = Node("user", " spaces, \x00 zero,\r\n line ends and 日本語 stay ")
    answer = Node("assistant", "yes", question.id, "hm\n", "stopped", report)
    store = Store(tmp_path)
    store.begin(card)
    store.add(card.id, question)
    store.add(card.id, answer)
    store.keep(answer.id, pack(record))
    assert store.close()
    store = Store(tmp_path)
    assert store.find(card.id[:6]).system == "be brief"
    branches = store.branches(card.id)
    assert branches.path == (question, answer)
    assert branches.path[1].report == report
    assert store.record(answer.id) == record
    assert store.record(question.id) is None
    [entry] = store.list()
    assert (entry.card.title, entry.card.model, entry.messages) == ("a title", "pair + drafter", 2)
    assert entry.card.created == card.created
    assert _open_to_others(tmp_path) == 0, "conversations are the user's alone"
    assert store.problem() == ""


def test_a_report_whose_figures_do_not_fit_costs_only_itself(tmp_path: Path) -> None:
    report = a_report()
    forged = replace(report, stats=replace(report.stats, accept_rate_by_depth=(), decode_s=1e308))
    store = Store(tmp_path)
    card, (question, answer) = talk(store, "Is it?", "Yes")
    sound = Node("assistant", "Yes, it is", question.id, report=report)
    other = Node("assistant", "Yes, it was", question.id, report=forged)
    for node in (sound, other):
        store.add(card.id, node)
    assert store.close()
    nodes = {node.id: node for node in Store(tmp_path).branches(card.id).nodes}
    assert nodes[sound.id] == sound
    assert nodes[other.id] == replace(other, report=None)
    assert nodes[answer.id] == answer


def test_branches_come_back_in_the_order_of_writing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    card, (question, first, follow, end) = talk(store, "q", "a", "q2", "a2")
    second = Node("assistant", "b", question.id)
    store.add(card.id, second)
    store.go(card.id, end.id)
    branches = store.branches(card.id)
    assert branches.path == (question, first, follow, end)
    assert branches.siblings(first.id) == (first.id, second.id)


def test_the_list_begins_with_the_last_changed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    one, nodes = talk(store, "one")
    talk(store, "two")
    assert titles(store) == ["two", "one"]
    store.add(one.id, Node("assistant", "more", nodes[-1].id))
    assert titles(store) == ["one", "two"]
    store.rename(one.id, "  a new\nname ")
    assert titles(store) == ["a new name", "two"]
    with pytest.raises(DFlashError, match="needs a title"):
        store.rename(one.id, " \n")
    store.delete(one.id)
    assert titles(store) == ["two"]
    assert not store.has(nodes[0].id)


@pytest.mark.parametrize(
    ("search", "found"),
    [
        ("speculative", ["Trees"]),
        ("specul decod", ["Trees"]),
        ("SPECULATIVE", ["Trees"]),
        ("décoding", ["Trees"]),
        ("culativ", ["Trees"]),  # inside a word
        ("naïve", ["Other"]),
        ("naive", ["Other"]),
        ("token_hex(8)", ["Other"]),
        ("Other", ["Other"]),
        ("木の", ["Other"]),
        ('"', []),
        ("speculative naive", []),
        ("100%", []),
        ("AND OR NOT *", []),
        ("", ["Other", "Trees"]),
    ],
)
def test_search(tmp_path: Path, search: str, found: list[str]) -> None:
    store = Store(tmp_path)
    talk(store, "What is speculative decoding?", "A drafter proposes, the target verifies.", title="Trees")
    talk(store, "A naïve call of token_hex(8)", "決定木の深さ", title="Other")
    assert titles(store, search) == found


def test_search_follows_changes(tmp_path: Path) -> None:
    store = Store(tmp_path)
    card, _ = talk(store, "alpha", "beta", title="first")
    talk(store, "alpha", title="second")
    assert titles(store, "alpha") == ["second", "first"]
    [entry] = store.list("beta")
    assert entry.excerpt == "beta"
    store.rename(card.id, "gamma")
    assert titles(store, "gamma") == ["gamma"]
    assert titles(store, "first") == []
    store.delete(card.id)
    assert titles(store, "alpha") == ["second"]
    assert titles(store, "beta") == []
    with sqlite3.connect(tmp_path / "conversations.db") as db:
        for index in ("message_content", "conversation_title"):
            db.execute(f"INSERT INTO {index} ({index}) VALUES ('integrity-check')")


def test_find_wants_one_conversation(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for id in ("aa11", "aa22"):
        store.begin(Card(id, id=id))
    assert store.find("aa1").id == "aa11"
    with pytest.raises(DFlashError, match="matches several, aa11, aa22"):
        store.find("aa")
    for name in ("", "b", "%", "aa111"):
        with pytest.raises(DFlashError, match="no conversation"):
            store.find(name)


def test_half_a_surrogate_pair_is_no_fault(tmp_path: Path) -> None:
    store = Store(tmp_path)
    card, nodes = talk(store, "a\ud800b")
    assert store.branches(card.id)[nodes[0].id].content == "a?b"


def test_the_record_of_a_deleted_answer_is_not_kept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    card, nodes = talk(store, "q", "a")
    store.delete(card.id)
    store.keep(nodes[1].id, pack(a_turn()))
    assert store.record(nodes[1].id) is None


def test_an_older_file_is_brought_up_to_date_with_what_is_in_it(tmp_path: Path) -> None:
    """Each earlier schema: made as that version made it, filled, opened by this one."""
    for version in range(1, VERSION):
        folder = tmp_path / str(version)
        folder.mkdir()
        with sqlite3.connect(folder / "conversations.db", isolation_level=None) as db:
            migrate(db, until=version)
            db.execute("INSERT INTO conversation VALUES (1, 'c', 'old title', '', 'pair', 1, 2, 'm')")
            db.execute("INSERT INTO message VALUES (1, 'm', 'c', NULL, 'user', 'old words', '', '', 1, NULL)")
            assert db.execute("PRAGMA user_version").fetchone() == (version,)
        db.close()
        store = Store(folder)
        assert store.problem() == ""
        assert titles(store, "words") == ["old title"]
        assert titles(store, "title") == ["old title"]
        assert store.branches("c").path[0].content == "old words"
        store.close()
        with sqlite3.connect(folder / "conversations.db") as db:
            rows = db.execute("SELECT version FROM migration ORDER BY version").fetchall()
        assert rows == [(number,) for number in range(1, VERSION + 1)]


def test_a_migration_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "conversations.db", isolation_level=None)
    migrate(db, until=1)
    db.execute("CREATE TABLE conversation_title (its_name INTEGER)")  # in the way of the second
    before = db.execute("SELECT sql FROM sqlite_master").fetchall()
    with pytest.raises(sqlite3.OperationalError, match="already exists"):
        migrate(db)
    assert db.execute("SELECT sql FROM sqlite_master").fetchall() == before
    assert db.execute("PRAGMA user_version").fetchone() == (1,)


def test_two_programs_write_at_once(tmp_path: Path) -> None:
    """Both begin with an empty folder, and each sees what the other wrote."""
    script = """
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from dflash_tui.application.conversations.branches import Node
from dflash_tui.application.conversations.store import Card, Store, database
database.PATIENCE_S = 600.0  # on a busy machine the other one may hold the file for long
store = Store(Path(sys.argv[1]))
for number in range(20):
    card = Card(f"{sys.argv[2]} {number}")
    store.begin(card)
    store.add(card.id, Node("user", "text"))
assert store.close() and not store.problem()
"""
    writers = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path), name], stderr=subprocess.PIPE) for name in "ab"
    ]
    for writer in writers:
        _, errors = writer.communicate(timeout=600)
        assert writer.returncode == 0, errors.decode()
    store = Store(tmp_path)
    assert len(store.list("text")) == 40
    assert store.problem() == ""


@contextmanager
def locked(folder: Path) -> Iterator[sqlite3.Connection]:
    """The file of another program that is slowly creating its first table, which it rolls back."""
    other = sqlite3.connect(folder / "conversations.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    yield other
    if other.in_transaction:
        other.execute("ROLLBACK")
    other.close()


def test_a_new_file_that_another_program_holds_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash_tui.application.conversations.store.database.PATIENCE_S", 600.0)
    with locked(tmp_path) as other:
        release = threading.Timer(0.2, other.execute, ["ROLLBACK"])
        release.start()
        store = Store(tmp_path)
        assert store.problem() == ""
        release.join()
    assert store.close()


def test_a_file_held_for_too_long_gets_what_was_written_once_it_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dflash_tui.application.conversations.store.database.PATIENCE_S", 0.05)
    with locked(tmp_path):
        store = Store(tmp_path)
        assert "locked" in store.problem()
        first = Card("first")
        store.begin(first)
        store.add(first.id, Node("user", "text"))
    store.begin(Card("second"))
    assert "nothing is missing" in store.problem()
    assert store.close()
    again = Store(tmp_path)
    assert sorted(titles(again)) == ["first", "second"]
    assert titles(again, "text") == ["first"]
    again.close()


def test_however_a_file_is_begun_it_is_its_users_alone(tmp_path: Path) -> None:
    blocked, damaged = tmp_path / "blocked", tmp_path / "damaged"
    blocked.write_text("a file where the folder should be")
    store = Store(blocked)
    assert "cannot be saved" in store.problem()
    blocked.unlink()
    store.begin(Card("first"))
    assert "nothing is missing" in store.problem()
    assert _open_to_others(blocked) == 0, "begun late"
    damaged.mkdir()
    (damaged / "conversations.db").write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    store = Store(damaged)
    assert "renamed to" in store.problem()
    assert _open_to_others(damaged) == 0, "begun again"


# Branches


def test_a_switch_goes_back_to_where_that_branch_was_left() -> None:
    tree = Branches()
    q = Node("user", "q")
    a1, a2 = Node("assistant", "1", q.id), Node("assistant", "2", q.id)
    deep = Node("user", "deep", a1.id)
    deeper, other = Node("assistant", "deeper", deep.id), Node("assistant", "other", deep.id)
    for node in (q, a1, deep, deeper, other, a2):
        tree.add(node)
    assert [node.content for node in tree.path] == ["q", "2"]
    assert tree.switch(a2.id, -1) == a1.id
    assert tree.leaf == other.id, "the newest, because it was the last on that path"
    assert tree.switch(other.id, -1) == deeper.id
    assert tree.switch(a1.id, 1) == a2.id
    assert tree.switch(a2.id, -1) == a1.id
    assert tree.leaf == deeper.id, "not the newest: it had been switched to"
    assert tree.switch(a1.id, -1) is None
    assert tree.leaf == deeper.id
    assert tree.siblings(q.id) == (q.id,)


def test_a_message_whose_parent_is_lost_opens_a_branch_of_its_own() -> None:
    tree = Branches([Node("user", "kept", parent="lost"), Node("user", "other")])
    assert [tree[id].content for id in tree.children(None)] == ["kept", "other"]


def test_calls_and_results_come_back(tmp_path: Path) -> None:
    call = ToolCall("call_1", "add", '{"a": "\\u20ac \\" \\n"}')
    ask = Node("user", "add", id="q")
    answer = Node("assistant", "", "q", id="a", calls=(call, ToolCall("call_2", "add")))
    result = ToolResult("call_1", "add", "5 <|im_end|>", "failed", 1.5)
    results = Node("user", "", "a", id="r", results=(result, ToolResult("call_2", "add", "")))
    store = Store(tmp_path)
    card = Card("sums", "", "pair")
    store.begin(card)
    for node in (ask, answer, results, Node("assistant", "Five.", "r", id="e")):
        assert store.add(card.id, node)
    assert store.close()
    again = Store(tmp_path)
    found = again.branches(card.id)
    assert found["a"].calls == answer.calls
    assert found["r"].results == results.results
    assert (found["q"].calls, found["q"].results) == ((), ())
    assert [node.asks for node in found.path] == [True, False, False, False]
    assert [node.results for node in again.ending(card.id)] == [(), (), results.results, ()]
    again.close()


def test_what_a_damaged_row_has_for_calls_is_damage(tmp_path: Path) -> None:
    store = Store(tmp_path)
    card = Card("sums", "", "pair")
    store.begin(card)
    store.add(card.id, Node("user", "add", id="q"))
    store.add(card.id, Node("assistant", "x", "q", id="a", calls=(ToolCall("call_1", "add"),)))
    store.close()
    with sqlite3.connect(tmp_path / "conversations.db") as db:
        db.execute("UPDATE message SET calls = '[3' WHERE id = 'a'")
    again = Store(tmp_path)
    assert [node.id for node in again.branches(card.id).path] == ["q"]
    assert "damaged" in again.problem()
    again.close()


def test_a_file_of_an_earlier_version_that_cannot_be_written_is_read(tmp_path: Path) -> None:
    """Its messages lack columns, and cannot get them."""
    target = sqlite3.connect(":memory:", isolation_level=None)
    migrate(target)
    with sqlite3.connect(tmp_path / "old.db", isolation_level=None) as db:
        migrate(db, until=3)
        db.execute("INSERT INTO conversation VALUES (1, 'c', 'old title', '', 'pair', 1, 2, 'm')")
        db.execute("INSERT INTO message VALUES (1, 'm', 'c', NULL, 'user', 'old words', '', '', 1, NULL)")
        assert copy(db, target, records=False) == 1
    assert target.execute("SELECT content, calls FROM message").fetchall() == [("old words", None)]
