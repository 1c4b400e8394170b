"""The kept conversation over a small real decoder: branches, and a resume that changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash_core.conversation import Conversation, build_prompt
from dflash_core.errors import ContextError, DFlashError
from dflash_core.knobs import Knobs
from dflash_tui.conversations.current import Keeper
from dflash_tui.conversations.store import StoreError
from support.kept import answer, conversation

KNOBS = Knobs(max_tokens=12, ignore_eos=True)


def contents(talk: Conversation) -> list[str]:
    return [message.content for message in talk.messages]


def path(keeper: Keeper) -> list[str]:
    return [node.content for node in keeper.branches.path]


@pytest.mark.parametrize("system", ["", "Be brief."])
@pytest.mark.parametrize("thinking", [False, True])
def test_the_prompt_after_a_resume_is_the_one_before(tmp_path: Path, system: str, thinking: bool) -> None:
    keeper, talk = Keeper(tmp_path), conversation(system)
    knobs = [KNOBS.replace(thinking=thinking, budget=4), KNOBS.replace(temperature=0.8, seed=7, thinking=thinking)]
    for prompt, one in zip((" Hello,\r\nworld <|im_end|> ", "and 日本語?"), knobs, strict=True):
        answer(keeper, talk, prompt, one)
    before = talk.messages
    assert keeper.card is not None
    name = keeper.card.id
    assert keeper.close()

    keeper, resumed = Keeper(tmp_path), conversation()
    keeper.open(name)
    keeper.resume(resumed)
    assert resumed.messages == before, "knobs and reports of every turn too"
    assert [m.report.knobs for m in resumed.messages if m.report] == knobs
    went_on = talk.ask("go on", KNOBS)
    turn = resumed.ask("go on", KNOBS)
    assert turn.prompt == went_on.prompt
    assert turn.prompt == build_prompt(talk.tokenizer, talk.template, resumed.messages, False)
    went_on.close()
    turn.close()


def test_a_retry_is_a_sibling_and_a_switch_goes_back(tmp_path: Path) -> None:
    keeper, talk = Keeper(tmp_path), conversation()
    first = answer(keeper, talk, "hi")
    again = keeper.retry(talk, KNOBS.replace(temperature=1.0, seed=3))
    list(again)
    assert contents(talk) == path(keeper) == ["hi", again.text]
    assert again.text != first
    third = answer(keeper, talk, "go on")
    leaf = keeper.branches.path[1].id
    there = keeper.switch(leaf, -1)
    assert there is not None
    keeper.resume(talk)
    assert contents(talk) == path(keeper) == ["hi", first]
    assert keeper.switch(there, -1) is None
    keeper.switch(there, 1)
    keeper.resume(talk)
    assert contents(talk) == path(keeper) == ["hi", again.text, "go on", third]
    assert keeper.card is not None
    assert Keeper(tmp_path).store.branches(keeper.card.id).path == keeper.branches.path


def test_an_edit_is_a_branch_and_both_can_be_resumed(tmp_path: Path) -> None:
    keeper, talk = Keeper(tmp_path), conversation()
    answer(keeper, talk, "one")
    answer(keeper, talk, "two")
    edited = keeper.branches.path[2].id
    turn = keeper.ask(talk, "two, better", KNOBS, instead_of=edited)
    list(turn)
    assert contents(talk) == path(keeper)
    assert path(keeper)[2] == "two, better"
    assert len(keeper.branches.siblings(edited)) == 2
    first = keeper.branches.path[0].id
    list(keeper.ask(talk, "another beginning", KNOBS, instead_of=first))
    assert contents(talk) == path(keeper)
    assert path(keeper)[0] == "another beginning"
    assert keeper.card is not None
    stored = Keeper(tmp_path).store.branches(keeper.card.id)
    assert stored.nodes == keeper.branches.nodes
    assert stored.path == keeper.branches.path
    assert keeper.switch(keeper.branches.path[0].id, -1) == first
    assert path(keeper)[2] == "two, better"


def test_a_refused_message_leaves_everything_as_it_was(tmp_path: Path) -> None:
    keeper, talk = Keeper(tmp_path), conversation()
    too_long = "word " * talk.engine.context_length
    with pytest.raises(ContextError):
        keeper.ask(talk, too_long, KNOBS)
    assert keeper.card is None
    assert keeper.store.list() == []
    answer(keeper, talk, "hi")
    before, nodes = talk.messages, keeper.branches.nodes
    for instead_of in (None, keeper.branches.path[0].id):
        with pytest.raises(ContextError):
            keeper.ask(talk, too_long, KNOBS, instead_of=instead_of)
        assert talk.messages == before
        assert keeper.branches.nodes == nodes
        assert path(keeper) == contents(talk)


def test_a_turn_that_fails_keeps_what_it_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper, talk = Keeper(tmp_path), conversation()
    turn = keeper.ask(talk, "hi", KNOBS)
    pieces = iter(turn)
    text = next(pieces).text + next(pieces).text

    def fail(*_: object) -> None:
        raise DFlashError("the device was lost")

    monkeypatch.setattr(type(talk.engine.session), "verify", fail)  # type: ignore[attr-defined]
    with pytest.raises(DFlashError, match="device was lost"):
        list(pieces)
    assert keeper.branches.path[-1].outcome == "failed"
    assert keeper.branches.path[-1].content.startswith(text)
    assert contents(talk) == path(keeper)
    monkeypatch.undo()
    list(keeper.retry(talk, KNOBS))
    assert contents(talk) == path(keeper)
    assert keeper.branches.path[-1].outcome == ""


def test_a_stopped_turn_is_kept_with_its_record(tmp_path: Path) -> None:
    keeper, talk = Keeper(tmp_path), conversation()
    turn = keeper.ask(talk, "hi", KNOBS.replace(max_tokens=500))
    for number, _ in enumerate(turn):
        if number == 2:
            turn.stop()
    kept = keeper.branches.path[-1]
    assert kept.content == turn.text
    assert kept.report is not None
    assert kept.report.stop == "cancelled"
    assert keeper.store.record(kept.id) == turn.record
    assert list((tmp_path / "journal").glob("*.turn")) == []


def test_rename_and_delete_of_the_present_conversation(tmp_path: Path) -> None:
    keeper, talk = Keeper(tmp_path), conversation()
    with pytest.raises(StoreError):
        keeper.rename("too early")
    answer(keeper, talk, "one")
    assert keeper.card is not None
    first = keeper.card.id
    keeper.rename("renamed")
    assert keeper.card.title == "renamed"
    keeper.new()
    talk.reset()
    answer(keeper, talk, "two")
    assert not keeper.delete(first)
    assert keeper.delete(keeper.card.id)
    assert keeper.card is None
    assert path(keeper) == []
    with pytest.raises(StoreError, match="no conversation"):
        keeper.open(first)


def test_a_resume_brings_the_records_of_the_turns_back(tmp_path: Path) -> None:
    keeper, talk = Keeper(tmp_path), conversation()
    for prompt in ("one", "two"):
        answer(keeper, talk, prompt)
    list(keeper.retry(talk, KNOBS.replace(temperature=1.0)))
    assert keeper.card is not None
    before, name = list(talk.turns), keeper.card.id
    keeper, resumed = Keeper(tmp_path), conversation()
    keeper.open(name)
    keeper.resume(resumed)
    assert list(resumed.turns) == before
    answer(keeper, resumed, "three")
    assert [record.start.prompt for record in resumed.turns] == ["one", "two", "two", "three"]
    assert list(resumed.turns[:3]) == before


def test_a_conversation_that_another_app_deletes_stays_as_long_as_it_is_open(tmp_path: Path) -> None:
    keeper, talk = Keeper(tmp_path), conversation()
    answer(keeper, talk, "one")
    assert keeper.card is not None
    other = Keeper(tmp_path)
    other.store.delete(keeper.card.id)
    answer(keeper, talk, "two")
    assert [node.content for node in other.store.branches(keeper.card.id).path] == contents(talk)
