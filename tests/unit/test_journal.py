"""The journal: the text that a killed program has left is restored at the next start, once, and never while the
program runs."""

from __future__ import annotations

import ast
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from dflash_core.knobs import Knobs
from dflash_core.record import encode, lines
from dflash_tui.application.background import DecoderUse, Running
from dflash_tui.application.conversations.branches import Node
from dflash_tui.application.conversations.current import CUT_OFF, CurrentConversation, Rescued
from dflash_tui.application.conversations.history import History
from dflash_tui.application.conversations.journal import Journal, Left, Place, Typed
from dflash_tui.application.conversations.store import Card, Store
from support.kept import conversation
from support.stored import a_turn, kill, killed_app, titles

PLACE = Place("c", "q", "a", "the question", None, "pair")


def left_in(folder: Path) -> list[Left]:
    store = Store(folder)
    found = list(Journal(store, folder / "journal").rescue())
    assert store.problem() == ""
    assert store.close()
    return found


def test_typed_text_and_the_turn_are_found(tmp_path: Path) -> None:
    store, whole = Store(tmp_path), a_turn()
    journal = Journal(store, tmp_path / "journal")
    journal.typed("half\na thought \ud800 [long]", ["one that waits"], {"[long]": "a long text", "[gone]": "another"})
    journal.begin(PLACE)
    for line in lines(whole):
        journal.line(line)
    journal.flush()
    assert left_in(tmp_path) == [], "its app is running"
    kill(journal)
    assert left_in(tmp_path) == [Left(Typed("half\na thought ? a long text", ("one that waits",)), PLACE, whole)]
    assert left_in(tmp_path) == [], "it was taken"
    assert list((tmp_path / "journal").iterdir()) == []


def test_a_turn_is_found_up_to_its_last_whole_step(tmp_path: Path) -> None:
    texts = []
    steps = list(lines(a_turn()))
    for count in range(len(steps), -1, -1):
        killed_app(tmp_path, place=PLACE, lines=steps[:count])
        [left] = left_in(tmp_path)
        assert left.place == PLACE
        texts.append(left.record.text if left.record else "no line")
    assert texts == ["Yes, it is", "Yes, it is", "Yes", "", "no line"]


def test_a_finished_turn_is_gone_and_a_closed_app_leaves_unsent_text_only(tmp_path: Path) -> None:
    store = Store(tmp_path)
    journal = Journal(store, tmp_path / "journal")
    journal.begin(PLACE)
    journal.line(next(lines(a_turn())))
    journal.finish()
    journal.close()
    assert list((tmp_path / "journal").iterdir()) == []
    for table in ("app", "step"):
        assert store.read(lambda db, table=table: db.execute(f"SELECT * FROM {table}").fetchall()) == []
    journal = Journal(store, tmp_path / "journal")
    journal.typed("unsent")
    journal.close()
    assert left_in(tmp_path) == [Left(Typed("unsent"))]


def test_a_step_is_committed_off_the_thread_that_hands_it_over(tmp_path: Path) -> None:
    """While another program writes, the decoder goes on, and nothing counts as saved."""
    current, talk = CurrentConversation(tmp_path), conversation()
    turn = current.ask(talk, "hi", Knobs(max_tokens=12, ignore_eos=True))
    pieces = current.pieces(turn, ahead=True)
    current.journal.flush()
    with closing(sqlite3.connect(tmp_path / "conversations.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        next(pieces)
        next(pieces)
        assert current.saved() == 0
        other.execute("ROLLBACK")
    current.journal.flush()
    assert current.saved() == 2
    pieces.close()


def test_only_saved_pieces_are_drained() -> None:
    saved = 0
    running = Running(DecoderUse(), lambda on_prefill: iter("abc"), saved=lambda: saved)  # type: ignore[arg-type, return-value]
    running.work()
    assert running.drain() == []
    saved = 2
    assert running.drain() == ["a", "b"]
    saved = 3
    assert running.drain() == ["c"]


def test_a_folder_that_cannot_be_written_is_said_once_and_nothing_else_fails(tmp_path: Path) -> None:
    (tmp_path / "journal").touch()
    current, talk = CurrentConversation(tmp_path), conversation()
    current.typed("text")
    turn = current.ask(talk, "hi", Knobs(max_tokens=4))
    assert len(list(current.pieces(turn))) > 1
    [problem] = current.problems()
    assert "journal cannot be written: Not a directory; what is typed" in problem
    assert current.problems() == []
    assert current.close()


def test_a_full_disk_in_mid_turn_is_no_fault_of_the_turn(tmp_path: Path) -> None:
    current, talk = CurrentConversation(tmp_path), conversation()
    turn = current.ask(talk, "hi", Knobs(max_tokens=12, ignore_eos=True))
    current.journal.flush()

    def fill(db: sqlite3.Connection) -> None:
        [(pages,)] = db.execute("PRAGMA page_count").fetchall()
        db.execute(f"PRAGMA max_page_count = {pages}")

    current.store.read(fill)
    assert len(list(current.pieces(turn))) > 1
    [problem] = current.problems()
    assert "database or disk is full" in problem
    assert current.problems() == []
    assert current.branches.path[-1].content == turn.text


@pytest.mark.parametrize("after", [0.3, pytest.param(1.5, marks=pytest.mark.full)])
def test_kill_9_in_mid_turn(tmp_path: Path, after: float) -> None:
    """The process is killed for real, over a real decoder; what it had handed over before is what is compared."""
    command = [sys.executable, "-m", "support.kept", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        assert process.stdout is not None
        printed = ast.literal_eval(process.stdout.readline())
        time.sleep(after)
        process.send_signal(signal.SIGKILL)
        lines_left = process.stdout.read().split("\n")
        printed += "".join(ast.literal_eval(line) for line in lines_left[:-1])
    assert process.returncode == -signal.SIGKILL
    assert printed

    current = CurrentConversation(tmp_path)
    rescued = current.rescue()
    assert rescued.texts == ("one that waits\nhalf a thought",)
    [card] = rescued.cards
    assert card.title == "first"
    current.open(card.id)
    first, _, second, cut = current.branches.path
    assert (first.content, second.content) == ("first\nquestion", "the second question")
    assert (cut.outcome, cut.report) == (CUT_OFF, None)
    assert cut.content.startswith(printed), "what had been shown, and perhaps the step after it"
    record = current.store.record(cut.id)
    assert record is not None
    assert (record.text, record.ended) == (cut.content, False)
    assert current.rescue().cards == (), "once"

    talk = conversation()
    current.resume(talk)
    list(current.pieces(current.ask(talk, "and now?", Knobs(max_tokens=4))))
    assert [node.content for node in current.branches.path] == [message.content for message in talk.messages]


def test_two_programs_at_once_take_nothing_from_each_other(tmp_path: Path) -> None:
    one, other = CurrentConversation(tmp_path), CurrentConversation(tmp_path)
    for current, name in ((one, "one"), (other, "other")):
        talk = conversation()
        list(current.pieces(current.ask(talk, f"of {name}", Knobs(max_tokens=4))))
        current.typed(f"half a thought of {name}")
    assert one.rescue() == other.rescue() == Rescued((), ())
    kill(one.journal)
    assert other.rescue().texts == ("half a thought of one",)
    assert sorted(titles(other.store)) == ["of one", "of other"]
    assert other.problems() == []


def test_a_file_that_is_removed_while_a_turn_runs_costs_no_answer(tmp_path: Path) -> None:
    current, talk = CurrentConversation(tmp_path), conversation()
    pieces = current.pieces(turn := current.ask(talk, "hi", Knobs(max_tokens=12, ignore_eos=True)))
    next(pieces)
    for file in tmp_path.glob("conversations.db*"):
        file.unlink()
    list(pieces)
    [problem] = current.problems()
    assert "while the program had it open" in problem
    [entry] = Store(tmp_path).list()
    assert Store(tmp_path).branches(entry.card.id).path[-1].content == turn.text


def test_an_answer_that_is_in_the_store_already_is_not_put_there_twice(tmp_path: Path) -> None:
    """Killed between the store's commit and the end of the turn's rows."""
    current = CurrentConversation(tmp_path)
    current.store.begin(Card("title", id="c"))
    current.store.add("c", Node("user", "the question", id="q"))
    current.store.add("c", Node("assistant", "whole", "q", id="a"))
    killed_app(tmp_path, place=PLACE)
    assert [card.id for card in current.rescue().cards] == ["c"]
    assert [node.content for node in current.store.branches("c").path] == ["the question", "whole"]


def test_a_message_that_did_not_reach_the_store_is_put_there(tmp_path: Path) -> None:
    """As if the disk had refused it, and had room again later."""
    killed_app(tmp_path, place=PLACE)
    current = CurrentConversation(tmp_path)
    [card] = current.rescue().cards
    assert (card.title, card.model) == ("the question", "pair")
    path = current.store.branches("c").path
    assert [(node.content, node.outcome) for node in path] == [("the question", ""), ("", CUT_OFF)]


def test_what_is_typed_and_sent_before_others_text_comes_back_stays_on_the_disk(tmp_path: Path) -> None:
    killed_app(tmp_path, "half a thought")
    current = CurrentConversation(tmp_path)
    current.wait("sent early")
    current.typed("early")
    assert current.rescue().texts == ("half a thought",)
    kill(current.journal)
    [left] = left_in(tmp_path)
    assert left.typed == Typed("half a thought\nearly", ("sent early",))


DEEP = b'{"x": ' + b"[" * 200_000


@pytest.mark.parametrize("kind", ["typed", "turn", "step"])
def test_json_that_is_nested_too_deep_is_damage(tmp_path: Path, kind: str) -> None:
    steps = [DEEP] if kind == "step" else [*map(encode, lines(a_turn()))]
    row = [b'{"draft": "a draft"}', msgspec.json.encode(PLACE)]
    if kind != "step":
        row[kind == "turn"] = DEEP
    store = Store(tmp_path)
    (tmp_path / "journal").mkdir()
    store.write(lambda db: db.execute("INSERT INTO app VALUES ('x', ?, ?, 0)", [one.decode() for one in row]))
    store.write(lambda db: db.executemany("INSERT INTO step (app, line) VALUES ('x', ?)", zip(steps)))
    store.close()
    [left] = left_in(tmp_path)
    assert left.typed.draft == ("" if kind == "typed" else "a draft")
    assert left.place == (None if kind == "turn" else PLACE)
    assert left_in(tmp_path) == []


def test_a_prompt_that_is_nested_too_deep_costs_its_line(tmp_path: Path) -> None:
    good = json.dumps({"prompt": "good"}).encode() + b"\n"
    (tmp_path / "prompts.jsonl").write_bytes(good + DEEP + b"\n" + good.replace(b"good", b"\\ud800"))
    assert History(tmp_path).entries == ("good", "?")
