"""The journal: the text that a killed program has left is restored at the next start, once, and never while the
program runs."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from dflash_core.knobs import Knobs
from dflash_core.record import lines
from dflash_tui.conversations.branches import Node
from dflash_tui.conversations.current import CUT_OFF, CurrentConversation
from dflash_tui.conversations.history import History
from dflash_tui.conversations.journal import Journal, Left, Place, Typed
from dflash_tui.conversations.store import Card
from support.kept import conversation
from support.stored import a_turn

PLACE = Place("c", "q", "a", "the question", None, "pair")


def killed(journal: Journal) -> None:
    """Release the lock, as the system does when a process ends."""
    assert journal._lock is not None
    journal._lock.close()


def left_in(folder: Path) -> list[Left]:
    return list(Journal(folder).rescue())


def test_typed_text_and_the_turn_are_found(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.typed("half\na thought \ud800", ["one that waits"])
    journal.begin(PLACE)
    whole = a_turn()
    for line in lines(whole):
        journal.line(line)
    assert left_in(tmp_path) == [], "its app is running"
    killed(journal)
    assert left_in(tmp_path) == [Left(Typed("half\na thought ?", ("one that waits",)), PLACE, whole)]
    assert left_in(tmp_path) == [], "it was taken"
    assert [path.suffix for path in tmp_path.iterdir()] in ([], [".lock"], [".lock"] * 2, [".lock"] * 3)


def test_a_turn_is_found_up_to_its_last_whole_line(tmp_path: Path) -> None:
    texts = []
    for cut in range(0, 3000, 7):
        journal = Journal(tmp_path)
        journal.begin(PLACE)
        for line in lines(a_turn()):
            journal.line(line)
        killed(journal)
        path = next(tmp_path.glob("*.turn"))
        size = path.stat().st_size
        os.truncate(path, max(size - cut, 0))
        found = left_in(tmp_path)
        if found:
            assert found[0].place == PLACE
            texts.append(found[0].record.text if found[0].record else "no line")
        if cut > size:
            break
    assert list(dict.fromkeys(texts)) == ["Yes, it is", "Yes", "", "no line"]


def test_a_finished_turn_is_gone_and_a_closed_app_leaves_unsent_text_only(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.begin(PLACE)
    journal.finish()
    journal.close()
    assert list(tmp_path.iterdir()) == []
    journal = Journal(tmp_path)
    journal.typed("unsent")
    journal.close()
    assert left_in(tmp_path) == [Left(Typed("unsent"))]


def test_files_are_the_users_alone(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.typed("text")
    journal.begin(PLACE)
    for path in (tmp_path / "journal", *(tmp_path / "journal").iterdir()):
        assert path.stat().st_mode & 0o077 == 0


def test_a_folder_that_cannot_be_written_is_said_once_and_nothing_else_fails(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    journal = Journal(tmp_path / "file" / "journal")
    assert "cannot be written: Not a directory" in journal.problem
    journal.typed("text")
    journal.begin(PLACE)
    for line in lines(a_turn()):
        journal.line(line)
    journal.finish()
    assert list(journal.rescue()) == []
    journal.close()


def test_a_full_disk_in_mid_turn_is_no_fault_of_the_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/dev/full refuses every write as a full disk does."""
    current, talk = CurrentConversation(tmp_path), conversation()
    turn = current.ask(talk, "hi", Knobs(max_tokens=12, ignore_eos=True))
    assert current.journal._turn is not None
    os.dup2(os.open("/dev/full", os.O_WRONLY), current.journal._turn.fileno())
    assert len(list(current.pieces(turn))) > 1
    [problem] = current.problems()
    assert "cannot be written: No space left on device" in problem
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


def test_an_answer_that_is_in_the_store_already_is_not_put_there_twice(tmp_path: Path) -> None:
    """Killed between the store's commit and the end of the journal's file."""
    current = CurrentConversation(tmp_path)
    current.store.begin(Card("title", id="c"))
    current.store.add("c", Node("user", "the question", id="q"))
    current.store.add("c", Node("assistant", "whole", "q", id="a"))
    current.journal.begin(PLACE)
    killed(current.journal)
    current = CurrentConversation(tmp_path)
    assert [card.id for card in current.rescue().cards] == ["c"]
    assert [node.content for node in current.store.branches("c").path] == ["the question", "whole"]


def test_a_message_that_did_not_reach_the_store_is_put_there(tmp_path: Path) -> None:
    """As if the disk had refused it, and had room again later."""
    journal = Journal(tmp_path / "journal")
    journal.begin(PLACE)
    killed(journal)
    current = CurrentConversation(tmp_path)
    [card] = current.rescue().cards
    assert (card.title, card.model) == ("the question", "pair")
    path = current.store.branches("c").path
    assert [(node.content, node.outcome) for node in path] == [("the question", ""), ("", CUT_OFF)]


def test_what_was_left_stays_while_the_store_is_in_memory_only(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.begin(PLACE)
    killed(journal)
    (tmp_path / "conversations.db").mkdir()
    current = CurrentConversation(tmp_path)
    assert current.rescue().cards == ()
    current.close()
    (tmp_path / "conversations.db").rmdir()
    assert len(CurrentConversation(tmp_path).rescue().cards) == 1


def test_what_is_typed_and_sent_before_others_text_comes_back_stays_on_the_disk(tmp_path: Path) -> None:
    before = CurrentConversation(tmp_path)
    before.typed("half a thought")
    killed(before.journal)
    current = CurrentConversation(tmp_path)
    current.wait("sent early")
    current.typed("early")
    assert current.rescue().texts == ("half a thought",)
    killed(current.journal)
    [left] = left_in(tmp_path / "journal")
    assert left.typed == Typed("half a thought\nearly", ("sent early",))


def test_typed_text_can_be_read_at_every_moment(tmp_path: Path) -> None:
    """Also where the program is killed after the text was written and before the file was cut to its length."""
    journal = Journal(tmp_path)
    for text in ("a long text\n" * 1000, "short", "", "longer again"):
        journal.typed(text)
        file = next(tmp_path.glob("*.typed"))
        whole = file.read_bytes()
        file.write_bytes(whole + b'the end of a longer one"}\n')
        copy = tmp_path / "copy"
        copy.mkdir(exist_ok=True)
        for kind in ("lock", "typed"):
            (copy / f"x.{kind}").write_bytes(file.with_suffix(f".{kind}").read_bytes())
        assert [left.typed.draft for left in left_in(copy)] == [text] * bool(text)


DEEP = b"[" * 200_000


@pytest.mark.parametrize("kind", ["typed", "turn", "step"])
def test_json_that_is_nested_too_deep_is_damage(tmp_path: Path, kind: str) -> None:
    journal = Journal(tmp_path)
    journal.typed("a draft")
    journal.begin(PLACE)
    files = {"typed": journal._path("typed"), "turn": journal._path("turn"), "step": journal._path("turn")}
    head = msgspec.json.encode(PLACE) + b"\n" if kind == "step" else b""
    files[kind].write_bytes(head + b'{"x": ' + DEEP + b"\n")
    killed(journal)
    [left] = Journal(tmp_path).rescue()
    assert left.typed.draft == ("" if kind == "typed" else "a draft")
    assert left.place == (None if kind == "turn" else PLACE)
    assert list(Journal(tmp_path).rescue()) == []


def test_a_prompt_that_is_nested_too_deep_costs_its_line(tmp_path: Path) -> None:
    good = json.dumps({"prompt": "good"}).encode() + b"\n"
    (tmp_path / "prompts.jsonl").write_bytes(good + b'{"prompt": ' + DEEP + b"\n" + good.replace(b"good", b"\\ud800"))
    assert History(tmp_path).entries == ("good", "?")
