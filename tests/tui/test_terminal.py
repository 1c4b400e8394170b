"""The whole program in a real terminal: start it, type, read the screen, resize it, quit. Needs tmux."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dflash_tui.application.conversations.current import CurrentConversation
from support.golden import golden
from support.grids import full

from .terminals import PATIENCE_S, Terminal

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


@pytest.fixture
def open_app(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(*options: str, columns: int = 120, rows: int = 40, environment: dict[str, str] | None = None) -> Terminal:
        command = [sys.executable, "-m", "dflash_tui", *options]
        opened.append(Terminal(tmp_path, command, columns, rows, environment))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()


def test_a_conversation_in_a_real_terminal(open_app: Callable[..., Terminal]) -> None:
    exported = {"COLUMNS": "90", "LINES": "30"}  # as some shells do; the terminal's own size holds
    terminal = open_app("--demo", "--set", "max_tokens=60", environment=exported)
    terminal.wait(lambda screen: "Ask anything" in screen, "the prompt")
    terminal.type("hi there")
    terminal.keys("Enter")
    finished = terminal.wait(lambda screen: " tok/step · auto" in screen, "figures under the answer")
    assert "hi there" in finished
    terminal.keys("F4")
    tree = terminal.wait(lambda screen: "✓" in screen, "the accepted path in the candidate tree")
    assert "hi there" in tree
    terminal.tmux("resize-window", "-x", "80", "-y", "24")
    terminal.wait(lambda screen: len(screen.splitlines()) <= 24 and "hi there" in screen, "the resized screen")
    terminal.tmux("resize-window", "-x", "30", "-y", "10")
    terminal.wait(lambda screen: "40" in screen and "12" in screen, "the size that is needed")
    terminal.tmux("resize-window", "-x", "120", "-y", "40")
    terminal.wait(lambda screen: "hi there" in screen, "the conversation again")
    terminal.keys("C-c")
    terminal.wait(lambda screen: "Ctrl+Q" in screen, "the hint at Ctrl+Q")
    terminal.keys("C-q")
    assert terminal.exit_code() == 0


def test_text_comes_from_an_unmarked_paste_and_an_editor_and_goes_to_a_buffer(
    open_app: Callable[..., Terminal], tmp_path: Path
) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nread answer\nprintf "%s" "$answer" >>"$1"\n')
    editor.chmod(0o755)
    terminal = open_app("--demo", "--set", "max_tokens=4", environment={"EDITOR": str(editor)})
    terminal.wait(lambda screen: "ctx" in screen, "the loaded model")
    terminal.tmux("set-buffer", "one\ntwo\nthree")
    terminal.tmux("paste-buffer")
    terminal.wait(lambda screen: "❯ one" in screen and "three" in screen and "Ctrl+L Empty" in screen, "the text")
    terminal.keys("C-e")
    terminal.wait(lambda screen: "Ask anything" not in screen and "ctx" not in screen, "the editor")
    terminal.type("+four")
    terminal.keys("Enter")
    terminal.wait(lambda screen: "three+four" in screen, "the text from the editor")
    terminal.keys("Enter")
    terminal.wait(lambda screen: " tok/step · " in screen, "the answer")
    terminal.keys("C-b", "M-Up", "M-Up", "M-c")  # without panels the notice stands on one line
    terminal.wait(lambda screen: "to the tmux buffer only" in screen, "where the copy is")
    assert terminal.tmux("show-buffer") == "one\ntwo\nthree+four"
    terminal.keys("C-q")
    assert terminal.exit_code() == 0


def test_esc_keeps_the_text_and_the_terminal_is_left_clean(open_app: Callable[..., Terminal]) -> None:
    pair = ("--target", str(golden("tiny-F16.gguf")), "--draft", str(golden("tiny-dflash")))
    terminal = open_app(*pair, "--set", "max_tokens=4000", "--set", "ignore_eos=on")
    terminal.wait(lambda screen: "Ask anything" in screen, "the prompt")
    terminal.type("go on and on")
    terminal.keys("Enter")
    terminal.wait(lambda screen: "writing" in screen, "an answer under way")
    terminal.keys("Escape")
    terminal.wait(lambda screen: "stopped" in screen, "the stopped answer")
    terminal.keys("C-q")
    assert terminal.exit_code() == 0


@pytest.mark.full  # as test_failed_load does without a terminal
def test_a_wrong_file_says_so_in_the_app(open_app: Callable[..., Terminal], tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.gguf"
    wrong.write_bytes(b"PK\x03\x04 this is no model")
    terminal = open_app("--target", str(wrong))
    screen = terminal.wait(lambda screen: "wrong.gguf" in screen and "GGUF" in screen, "the refusal")
    assert "Traceback" not in screen
    terminal.keys("C-q")
    assert terminal.exit_code() == 0


def in_mid_answer(open_app: Callable[..., Terminal]) -> Terminal:
    """The app with an answer under way and unsent text in the prompt."""
    terminal = open_app("--demo", "--set", "ignore_eos=on")
    terminal.wait(lambda screen: "ctx" in screen, "the loaded model")
    terminal.type("hi")
    terminal.keys("Enter")
    terminal.wait(lambda screen: "writing" in screen, "an answer under way")
    terminal.type("half a thought")
    terminal.wait(lambda screen: "half a thought" in screen, "the unsent text")
    return terminal


# That each of the three ends the app is tested in test_hangup without a program; here is the way from one to its end.
@pytest.mark.parametrize("name", ["TERM", full("INT"), full("HUP")])
def test_a_signal_ends_the_app_as_ctrl_q_does(open_app: Callable[..., Terminal], tmp_path: Path, name: str) -> None:
    terminal = in_mid_answer(open_app)
    terminal.tmux("set-option", "remain-on-exit", "on")
    os.kill(terminal.program(), getattr(signal, f"SIG{name}"))
    assert terminal.exit_code() == 128 + getattr(signal, f"SIG{name}")
    assert terminal.tmux("display", "-p", "#{alternate_on}#{mouse_any_flag}").strip() == "00"
    assert kept(tmp_path) == ("half a thought", ["hi"])


@pytest.mark.full  # as test_hangup does in mid-answer, with other processes between the program and the terminal
def test_a_terminal_that_closes_in_mid_answer_ends_the_app_and_loses_nothing(
    open_app: Callable[..., Terminal], tmp_path: Path
) -> None:
    terminal = in_mid_answer(open_app)
    program = terminal.program()
    terminal.close()
    deadline = time.monotonic() + PATIENCE_S
    while subprocess.run(["ps", "-p", str(program)], capture_output=True, check=False).returncode == 0:
        assert time.monotonic() < deadline, "the program lives on without a terminal"
        time.sleep(0.1)
    assert kept(tmp_path) == ("half a thought", ["hi"])


def kept(home: Path) -> tuple[str, list[str]]:
    """The text that the next start gives back, and the messages before the answer that was being written."""
    current = CurrentConversation(home / "dflash-tui")
    [text] = current.rescue().texts
    [entry] = current.store.list()
    *before, answer = current.store.branches(entry.card.id).path
    assert answer.content
    return text, [node.content for node in before]


def test_kill_9_in_mid_answer(open_app: Callable[..., Terminal], tmp_path: Path) -> None:
    """What is on the screen when the program is killed is in the conversation that the next start offers."""
    terminal = in_mid_answer(open_app)
    seen = terminal.wait(lambda screen: len(answer_rows(screen)) > 3, "some rows of the answer")
    os.kill(terminal.program(), signal.SIGKILL)
    assert terminal.exit_code() == 128 + signal.SIGKILL
    terminal.close()
    (tmp_path / "exit-code").unlink()
    again = open_app("--demo")
    again.wait(lambda screen: "The program ended in the middle of an answer: hi" in screen, "the offer")
    again.keys("Enter")
    again.wait(lambda screen: "half a thought" in screen and "cut off" in screen, "the rescued conversation")
    again.keys("C-q")
    assert again.exit_code() == 0
    current = CurrentConversation(tmp_path / "dflash-tui")
    question, answer = current.store.branches(current.store.list()[0].card.id).path
    assert question.content == "hi"
    rescued = " ".join(answer.content.split())
    for row in answer_rows(seen):
        assert row in rescued


MARGIN = "    "  # of an answer; the line of keys begins further left


def answer_rows(screen: str) -> list[str]:
    """The rows of plain prose that are being written, without what stands beside them."""
    rows = [re.split(r"[^ -~]", row)[0] for row in screen.split("❯ hi")[-1].splitlines()]
    return [row.strip() for row in rows if row.startswith(MARGIN) and len(row) > 40 and "writing" not in row]


def test_a_paste_of_4000_lines_arrives_whole_and_survives(open_app: Callable[..., Terminal], tmp_path: Path) -> None:
    """It does not fit in the context: it is refused with suggestions and given back, also after a resize, and is still
    there at the next start."""
    lines = "".join(f"line {number} of a long paste\n" for number in range(4000)) + "the end"
    (tmp_path / "paste").write_text(lines)
    terminal = open_app("--demo")
    terminal.wait(lambda screen: "ctx" in screen, "the loaded model")
    terminal.tmux("load-buffer", str(tmp_path / "paste"))
    terminal.tmux("paste-buffer", "-p")
    words = "[pasted 1: 103kB]"
    terminal.wait(lambda screen: words in screen, "the paste in the prompt")
    terminal.tmux("resize-window", "-x", "80", "-y", "24")
    terminal.wait(lambda screen: len(screen.splitlines()) <= 24 and words in screen, "the resized screen")
    terminal.keys("Enter")
    terminal.wait(lambda screen: "The message alone has" in screen and words in screen, "the refusal, and the text")
    terminal.keys("Escape")
    terminal.wait(lambda screen: "The message alone" not in screen and words in screen, "the prompt with the text")
    terminal.keys("C-q")
    assert terminal.exit_code() == 0
    terminal.close()
    terminal.code.unlink()
    again = open_app("--demo")
    again.wait(lambda screen: all(part in screen for part in ("line 0 of", words, "the end")), "the text")
    again.keys("C-q")
    assert again.exit_code() == 0


def test_a_paste_with_colours_is_neither_cut_nor_sent(open_app: Callable[..., Terminal], tmp_path: Path) -> None:
    (tmp_path / "paste").write_text("first\n\x1b[31mred\x1b[0m and\nlast words")
    terminal = open_app("--demo")
    terminal.wait(lambda screen: "ctx" in screen, "the loaded model")
    terminal.tmux("load-buffer", str(tmp_path / "paste"))
    terminal.tmux("paste-buffer", "-p")
    screen = terminal.wait(lambda screen: "last words" in screen, "the end of the paste")
    assert "first" in screen
    assert "red and" in screen
    assert "A drafter is a small model" in screen, "nothing was sent"
    terminal.keys("C-q")
    assert terminal.exit_code() == 0


@pytest.mark.parametrize(
    "environment",
    [
        full({"NO_COLOR": "1"}),
        {"LC_ALL": "C", "PYTHONUTF8": "0"},
        {"TERM": "vt100", "SSH_TTY": "/dev/pts/0"},
        full({"TERM": "vt100"}),
        full({"SSH_TTY": "/dev/pts/0"}),
    ],
    ids=["no colour", "no unicode", "vt100 over ssh", "vt100", "ssh"],
)
def test_poor_terminals(open_app: Callable[..., Terminal], environment: dict[str, str]) -> None:
    terminal = open_app("--demo", "--no-mouse", environment=environment)
    terminal.wait(lambda screen: "ctx" in screen, "the loaded model")
    assert terminal.tmux("display", "-p", "#{mouse_any_flag}").strip() == "0", "--no-mouse leaves the mouse alone"
    terminal.type("hi there")
    terminal.keys("Enter")
    # Not those of the panel, which come while it is written: Ctrl+Q would then ask first.
    screen = terminal.wait(lambda screen: bool(re.search(r"tok/step . auto", screen)), "figures under the answer")
    assert "hi there" in screen
    assert "Traceback" not in screen
    if "PYTHONUTF8" in environment:
        terminal.keys("F4")
        tree = terminal.wait(lambda screen: "own" in screen, "the tree")
        assert tree.isascii()
        assert "> hi there" in tree
    if "NO_COLOR" in environment:
        coloured = terminal.tmux("capture-pane", "-p", "-e")
        colours = re.findall(r"[34]8;2;(\d+);(\d+);(\d+)", coloured)
        assert all(max(map(int, colour)) - min(map(int, colour)) <= 2 for colour in colours), "greys only"
    terminal.keys("C-q")
    assert terminal.exit_code() == 0


FAULTY = """
import sys
if "dflash_tui" in sys.orig_argv and "--resume" not in sys.orig_argv:
    from dflash_core.errors import KernelError
    from dflash_core.runner import Runner
    sound = Runner.generate

    def generate(self, *args, **options):
        yield next(sound(self, *args, **options))
        raise KernelError("the GPU gave up in gdn_recurrence (illegal address); reload the engine", reload=True)

    Runner.generate = generate
"""


def test_a_lost_device_is_left_by_a_restart_in_the_same_terminal(
    open_app: Callable[..., Terminal], tmp_path: Path
) -> None:
    faulty = tmp_path / "faulty"
    faulty.mkdir()
    (faulty / "sitecustomize.py").write_text(FAULTY)
    app = open_app("--demo", "--set", "max_tokens=30", environment={"PYTHONPATH": str(faulty)})
    app.wait(lambda screen: "Ask anything" in screen, "the prompt")
    app.type("Hello! What can you do?")
    app.keys("Enter")
    app.wait(lambda screen: "/reload restarts the program" in screen, "the fault, in one line")
    before = app.program()
    app.type("/reload")
    app.keys("Enter")
    app.wait(lambda screen: "resumed: Hello!" in screen and "❯ Hello! What can you do?" in screen, "the conversation")
    assert app.program() == before, "the process goes on as another program"
    screen = app.wait(lambda screen: " mem " in screen, "the loaded pair")
    assert "❯ /reload" not in screen
    app.keys("C-r")
    app.wait(lambda screen: "‹2/2›" in screen and "cut at max" in screen, "an answer")
    app.keys("C-q")
    assert app.exit_code() == 0
