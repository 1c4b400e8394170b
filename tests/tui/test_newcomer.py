"""A newcomer's first ten minutes in a real terminal: everything done before quitting is there at the next start.

Waits for what is on the screen, never for a time. Answers are short, and tuning is stopped once it has measured
something: what it has by then is used and kept.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dflash_tui.screens.tour import STEPS
from support.grids import full

from .terminals import Terminal

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
QUESTIONS = ("Hello!", "What can you do?")
NOTES = "The drafter proposes, the target decides.\n"


def answered(question: str) -> Callable[[str], bool]:
    """The figures stand under the answer to this question."""
    return lambda screen: f"❯ {question}" in screen and " tok/step · " in screen.split(f"❯ {question}")[-1]


def send(terminal: Terminal, text: str) -> None:
    terminal.type(text)
    terminal.wait(lambda screen: text.split()[-1] in screen, f"{text!r} in the prompt")
    terminal.keys("Enter")


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), full(120, 40)])
def test_ten_minutes(tmp_path: Path, columns: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "notes.txt").write_text(NOTES)
    monkeypatch.chdir(work)
    program = [sys.executable, "-m", "dflash_tui", "--set", "max_tokens=24"]
    first = Terminal(tmp_path, program, columns, rows)
    try:
        first.wait(lambda screen: "Which model" in screen and "demo pair" in screen, "the choice of a model")
        first.keys("Enter")
        first.wait(lambda screen: "Try one" in screen and " mem " in screen, "the loaded model")
        send(first, "/tour")
        for number, step in enumerate(STEPS, 1):
            way = "Enter ends it" if number == len(STEPS) else "Enter next"
            first.wait(lambda screen: step.title in screen and way in screen, f"step {number} of the tour")  # noqa: B023
            first.keys("Enter")
        first.wait(lambda screen: "Try one" in screen and way not in screen, "the end of the tour")
        for question in QUESTIONS:
            send(first, question)
            first.wait(answered(question), f"the answer to {question!r}")
        first.type("Read @no")
        first.wait(lambda screen: "notes.txt" in screen, "the file among the completions")
        first.keys("Tab")
        first.wait(lambda screen: "Read @notes.txt" in screen, "the completed name")
        first.keys("Enter")
        asked = first.wait(answered("Read @notes.txt"), "the answer about the file")
        assert f"notes.txt · {len(NOTES)}B" in asked
        first.keys("F8")
        first.wait(lambda screen: "difference" in screen and "★" in screen, "a setting that was measured")
        first.keys("Escape")
        first.wait(lambda screen: "cut short" in screen and "★" in screen, "the best of what was measured")
        first.keys("Enter")
        used = ("from the next turn", "already the current setting")  # which is best depends on the machine
        first.wait(lambda screen: any(words in screen for words in used), "the best setting, in use")
        first.keys("s")
        first.wait(lambda screen: "A name for the preset" in screen, "the question for a name")
        first.keys("Enter")
        first.wait(lambda screen: "preset tuned is saved" in screen, "the preset, kept")
        first.keys("Escape")
        first.wait(lambda screen: "Ask anything" in screen, "the chat")
        first.keys("C-q")
        assert first.exit_code() == 0
    finally:
        first.close()
    first.code.unlink()

    again = Terminal(tmp_path, program, columns, rows)
    try:
        screen = again.wait(lambda screen: "Try one" in screen and " mem " in screen, "the model, remembered")
        assert "Which model" not in screen
        again.keys("C-o")
        again.wait(lambda screen: QUESTIONS[0] in screen and "Open" in screen, "the conversation in the list")
        again.keys("Enter")
        again.wait(lambda screen: "❯ Read @notes.txt" in screen and "Ask anything" in screen, "what was said")
        again.wait(lambda screen: QUESTIONS[0] in screen.splitlines()[0], "its title")
        send(again, "/preset tuned")
        again.wait(lambda screen: "preset tuned from the next turn" in screen, "the preset")
        again.keys("C-q")
        assert again.exit_code() == 0
    finally:
        again.close()
