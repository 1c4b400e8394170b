"""The kept conversation over a small real decoder: branches, and a resume that changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash_core.conversation import Conversation
from dflash_core.errors import ContextError, DFlashError
from dflash_core.knobs import Knobs
from dflash_core.prompting import build_prompt
from dflash_core.text.prompt import Prompting
from dflash_tui.application.conversations.current import CurrentConversation
from support.kept import answer, conversation

KNOBS = Knobs(max_tokens=12, ignore_eos=True)


def contents(talk: Conversation) -> list[str]:
    return [message.content for message in talk.messages]


def path(current: CurrentConversation) -> list[str]:
    return [node.content for node in current.branches.path]


@pytest.mark.parametrize("system", ["", "Be brief."])
@pytest.mark.parametrize("thinking", [False, True])
def test_the_prompt_after_a_resume_is_the_one_before(tmp_path: Path, system: str, thinking: bool) -> None:
    current, talk = CurrentConversation(tmp_path), conversation(system)
    knobs = [KNOBS.replace(thinking=thinking, budget=4), KNOBS.replace(temperature=0.8, seed=7, thinking=thinking)]
    for prompt, one in zip((" Hello,\r\nworld <|im_end|> ", "and 日本語?"), knobs, strict=True):
        answer(current, talk, prompt, one)
    before = talk.messages
    assert current.card is not None
    name = current.card.id
    assert current.close()

    current, resumed = CurrentConversation(tmp_path), conversation()
    current.open(name)
    current.resume(resumed)
    assert resumed.messages == before, "knobs and reports of every turn too"
    assert [m.report.asked for m in resumed.messages if m.report] == knobs
    went_on = talk.ask("go on", KNOBS)
    turn = resumed.ask("go on", KNOBS)
    assert turn.prompt == went_on.prompt
    assert turn.prompt == build_prompt(Prompting(talk.tokenizer, talk.template, False), resumed.messages)
    went_on.close()
    turn.close()


def test_a_retry_is_a_sibling_and_a_switch_goes_back(tmp_path: Path) -> None:
    current, talk = CurrentConversation(tmp_path), conversation()
    first = answer(current, talk, "hi")
    again = current.retry(talk, KNOBS.replace(temperature=1.0, seed=3))
    list(current.pieces(again))
    assert contents(talk) == path(current) == ["hi", again.text]
    assert again.text != first
    third = answer(current, talk, "go on")
    leaf = current.branches.path[1].id
    there = current.switch(leaf, -1)
    assert there is not None
    current.resume(talk)
    assert contents(talk) == path(current) == ["hi", first]
    assert current.switch(there, -1) is None
    current.switch(there, 1)
    current.resume(talk)
    assert contents(talk) == path(current) == ["hi", again.text, "go on", third]
    assert current.card is not None
    assert CurrentConversation(tmp_path).store.branches(current.card.id).path == current.branches.path


def test_an_edit_is_a_branch_and_both_can_be_resumed(tmp_path: Path) -> None:
    current, talk = CurrentConversation(tmp_path), conversation()
    answer(current, talk, "one")
    answer(current, talk, "two")
    edited = current.branches.path[2].id
    turn = current.ask(talk, "two, better", KNOBS, instead_of=edited)
    list(current.pieces(turn))
    assert contents(talk) == path(current)
    assert path(current)[2] == "two, better"
    assert len(current.branches.siblings(edited)) == 2
    first = current.branches.path[0].id
    list(current.pieces(current.ask(talk, "another beginning", KNOBS, instead_of=first)))
    assert contents(talk) == path(current)
    assert path(current)[0] == "another beginning"
    assert current.card is not None
    stored = CurrentConversation(tmp_path).store.branches(current.card.id)
    assert stored.nodes == current.branches.nodes
    assert stored.path == current.branches.path
    assert current.switch(current.branches.path[0].id, -1) == first
    assert path(current)[2] == "two, better"


def test_a_refused_message_leaves_everything_as_it_was(tmp_path: Path) -> None:
    current, talk = CurrentConversation(tmp_path), conversation()
    too_long = "word " * talk.engine.context_length
    with pytest.raises(ContextError):
        current.ask(talk, too_long, KNOBS)
    assert current.card is None
    assert current.store.list() == []
    answer(current, talk, "hi")
    before, nodes = talk.messages, current.branches.nodes
    for instead_of in (None, current.branches.path[0].id):
        with pytest.raises(ContextError):
            current.ask(talk, too_long, KNOBS, instead_of=instead_of)
        assert talk.messages == before
        assert current.branches.nodes == nodes
        assert path(current) == contents(talk)


def test_a_turn_that_fails_keeps_what_it_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    current, talk = CurrentConversation(tmp_path), conversation()
    turn = current.ask(talk, "hi", KNOBS)
    pieces = current.pieces(turn)
    text = next(pieces).text + next(pieces).text

    def fail(*_: object) -> None:
        raise DFlashError("the device was lost")

    monkeypatch.setattr(type(talk.engine.session), "verify", fail)  # type: ignore[attr-defined]
    with pytest.raises(DFlashError, match="device was lost"):
        list(pieces)
    assert current.branches.path[-1].outcome == "failed"
    assert current.branches.path[-1].content.startswith(text)
    assert contents(talk) == path(current)
    monkeypatch.undo()
    list(current.pieces(current.retry(talk, KNOBS)))
    assert contents(talk) == path(current)
    assert current.branches.path[-1].outcome == ""


def test_a_stopped_turn_is_kept_with_its_record(tmp_path: Path) -> None:
    current, talk = CurrentConversation(tmp_path), conversation()
    turn = current.ask(talk, "hi", KNOBS.replace(max_tokens=500))
    for number, _ in enumerate(current.pieces(turn)):
        if number == 2:
            turn.stop()
    kept = current.branches.path[-1]
    assert kept.content == turn.text
    assert kept.report is not None
    assert kept.report.stop == "cancelled"
    assert current.store.record(kept.id) == turn.record
    assert current.store.read(lambda db: db.execute("SELECT * FROM step").fetchall()) == []


def test_rename_and_delete_of_the_present_conversation(tmp_path: Path) -> None:
    current, talk = CurrentConversation(tmp_path), conversation()
    with pytest.raises(DFlashError):
        current.rename("too early")
    answer(current, talk, "one")
    assert current.card is not None
    first = current.card.id
    current.rename("renamed")
    assert current.card.title == "renamed"
    current.new()
    talk.reset()
    answer(current, talk, "two")
    assert not current.delete(first)
    assert current.delete(current.card.id)
    assert current.card is None
    assert path(current) == []
    with pytest.raises(DFlashError, match="no conversation"):
        current.open(first)


def test_a_resume_brings_the_records_of_the_turns_back(tmp_path: Path) -> None:
    current, talk = CurrentConversation(tmp_path), conversation()
    for prompt in ("one", "two"):
        answer(current, talk, prompt)
    list(current.pieces(current.retry(talk, KNOBS.replace(temperature=1.0))))
    assert current.card is not None
    before, name = list(talk.turns), current.card.id
    current, resumed = CurrentConversation(tmp_path), conversation()
    current.open(name)
    current.resume(resumed)
    assert list(resumed.turns) == before
    answer(current, resumed, "three")
    assert [record.start.prompt for record in resumed.turns] == ["one", "two", "two", "three"]
    assert list(resumed.turns[:3]) == before


def test_a_conversation_that_another_app_deletes_stays_as_long_as_it_is_open(tmp_path: Path) -> None:
    current, talk = CurrentConversation(tmp_path), conversation()
    answer(current, talk, "one")
    assert current.card is not None
    other = CurrentConversation(tmp_path)
    other.store.delete(current.card.id)
    answer(current, talk, "two")
    assert [node.content for node in other.store.branches(current.card.id).path] == contents(talk)
