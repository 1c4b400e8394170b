"""A slice of the monkey, and that it notices what it is there to notice."""

from __future__ import annotations

from pathlib import Path

import pytest

from abuse import monkey
from abuse.actions import Action, load, save, sequence
from abuse.report import Report
from abuse.scripted import scripted
from dflash_tui.application.conversations.journal import Journal
from dflash_tui.application.conversations.store import Store

ACTIONS = 120


def test_a_slice(tmp_path: Path) -> None:
    report = monkey.run(1, tmp_path, actions=ACTIONS)
    assert report.faults == []
    assert report.counts["actions"] == ACTIONS
    assert report.counts["turns"]


SENT = [Action("send", "m1x1x and more"), Action("wait"), Action("type", "m1x2x"), Action("pause", "0.01")]


def live(folder: Path, actions: list[Action]) -> Report:
    report = Report("monkey", 0)
    monkey.live("0", actions, folder, report, session=scripted)
    return report


def test_what_a_monkey_does_can_be_done_again(tmp_path: Path) -> None:
    kept = save(tmp_path / "a.actions", SENT)
    assert load(kept) == SENT
    assert live(tmp_path / "life", SENT).faults == []


def planted(folder: Path, actions: list[Action], monkeypatch: pytest.MonkeyPatch, words: str) -> Report:
    """What is planted stays wrong for good. On a busy machine something else may be late, too; it gets more time."""
    for patience_s in (2.0, 20.0, 200.0):
        monkeypatch.setattr(monkey, "PATIENCE_S", patience_s)
        report = live(folder / f"{patience_s}", actions)
        if any(words in one.detail for one in report.findings):
            break
    return report


def test_text_that_is_lost_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash_tui.widgets.prompt.Prompt.restore", lambda self, text: None)
    words = "m1x2x was in the prompt and does not come back"
    report = planted(tmp_path, [*SENT, Action("quit"), Action("pause", "0.01")], monkeypatch, words)
    assert [one.kind for one in report.lost] == ["text is lost"]
    assert words in report.lost[0].detail


INSIDE = [Action("type", "m1x1x"), Action("edit", sequence("shift+left")), Action("move", sequence("left"))]


@pytest.mark.parametrize("key", ["shift+enter", "left_square_bracket", "1"])
@pytest.mark.parametrize("where", [INSIDE, INSIDE[:2]], ids=["cursor in a word", "part of a word selected"])
def test_a_key_of_a_command_that_types_into_a_word_loses_nothing(tmp_path: Path, where: list[Action], key: str) -> None:
    assert live(tmp_path, [*where, Action("bound", sequence(key))]).faults == []


@pytest.mark.parametrize("kind", ["bound", "letter"])
def test_a_key_that_empties_the_prompt_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    think = "dflash_tui.screens.chat.ChatScreen.action_think"
    monkeypatch.setattr(think, lambda self: setattr(self.prompt, "text", ""))
    [found] = planted(tmp_path, [*INSIDE, Action(kind, sequence("ctrl+t"))], monkeypatch, "m1x1x is nowhere").lost
    assert "m1x1x is nowhere" in found.detail


def test_a_journal_that_lags_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Journal, "typed", lambda self, *texts: None)
    words = "the journal has another draft than the prompt"
    [found] = planted(tmp_path, SENT, monkeypatch, words).differences
    assert words in found.detail


def test_a_message_that_is_not_stored_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "add", lambda self, conversation, node: True)
    words = "the store has other messages than the tree"
    [found] = planted(tmp_path, SENT, monkeypatch, words).findings
    assert words in found.detail


def test_an_exception_is_a_crash_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash_tui.screens.chat.ChatScreen.action_think", lambda self: 1 / 0)
    [found] = live(tmp_path, [*SENT, Action("bound", "\x14")]).crashes
    assert found.kind.startswith("ZeroDivisionError")
    assert load(Path(found.kept))[-1] == Action("bound", "\x14")
