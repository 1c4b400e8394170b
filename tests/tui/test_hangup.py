"""A terminal that goes away: the program ends, whatever its parents do with SIGHUP, and what it has is kept."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import select
import shlex
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dflash_tui.application.conversations.current import CurrentConversation
from dflash_tui.terminal import hangup

PATIENCE_S = 600.0  # loading torch on a busy machine
LIMIT_S = 600.0  # for an end that takes 3 s at most; more only where others have the processor


class Terminal:
    """A program whose terminal is the other end of `master`; it gets SIGHUP only from the processes in between."""

    def __init__(self, home: Path, command: list[str], *, controlling: bool) -> None:
        self.home = home
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        kinds = ("DATA", "CONFIG", "CACHE", "STATE")
        env = {**os.environ, "TERM": "xterm-256color", "HOME": str(home)}
        env |= {f"XDG_{kind}_HOME": str(home) for kind in kinds}

        def begin() -> None:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            os.setsid()
            if controlling:
                fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=env, cwd=home, preexec_fn=begin
        )
        os.close(slave)
        self.seen = ""

    def wait(self, *texts: str) -> None:
        """Until all of `texts` have been written, in whatever order."""
        deadline = time.monotonic() + PATIENCE_S
        while not all(text in self.seen for text in texts):
            assert time.monotonic() < deadline, f"never seen: {texts}\n{self.seen[-4000:]}"
            if select.select([self.master], [], [], 0.2)[0]:
                try:
                    self.seen += os.read(self.master, 1 << 16).decode(errors="replace")
                except OSError:
                    pytest.fail(f"it ended: {self.seen[-4000:]}")

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def go_away(self) -> None:
        os.close(self.master)
        self.master = -1

    def program(self) -> int:
        """The process whose id `BEGIN` wrote to a file."""
        return int((self.home / "pid").read_text())

    def close(self) -> None:
        if self.master >= 0:
            os.close(self.master)
        for pid in (self.process.pid, self.program() if (self.home / "pid").exists() else 0):
            if pid and alive(pid):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(LIMIT_S)


def until(holds: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.05)


def journaled(home: Path, text: str) -> bool:
    """Whether the database holds the text as typed."""
    path = home / "dflash-tui" / "conversations.db"
    if not path.exists():
        return False
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        return bool(db.execute("SELECT 1 FROM app WHERE instr(typed, ?)", (text,)).fetchone())


def alive(pid: int) -> bool:
    """Whether any of the process's threads still runs: the last one closes its files, and with them its locks."""
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(found.strip()) and (not found.startswith("Z") or "l" in found)


def ended(pid: int) -> None:
    deadline = time.monotonic() + LIMIT_S
    while alive(pid):
        assert time.monotonic() < deadline, "the program lives on without a terminal"
        time.sleep(0.05)


BEGIN = """
import os, sys
open("pid", "w").write(str(os.getpid()))
from dflash_tui.__main__ import run
sys.exit(run())
"""
# Before it, where a slow machine is given all the time that it takes to end.
PATIENT = """
from dflash_tui.terminal import hangup
hangup.END_S = 600.0
"""
# The same, where a key has the main thread wait for ever.
HELD = """
import threading
from dflash_tui.screens.chat import ChatScreen
ChatScreen.action_think = lambda self: (open("held", "w").close(), threading.Event().wait())
"""


def through_make(home: Path, line: str) -> list[str]:
    (home / "makefile").write_text(f"chat:\n\t@{line}\n")
    return ["make", "chat"]


def through_sh(home: Path, line: str) -> list[str]:
    return ["sh", "-c", f"trap '' HUP; {line}; true"]


def through_a_session(home: Path, line: str) -> list[str]:
    return ["setsid", "sh", "-c", line]


def directly(home: Path, line: str) -> list[str]:
    return ["sh", "-c", f"exec {line}"]


WAYS = (through_make, through_sh, through_a_session, directly)
Open = Callable[..., Terminal]


@pytest.fixture
def open_terminal(tmp_path: Path) -> Iterator[Open]:
    opened: list[Terminal] = []

    def start(way: Callable[[Path, str], list[str]], *options: str, program: str = BEGIN) -> Terminal:
        (tmp_path / "program.py").write_text(program)
        command = way(tmp_path, shlex.join([sys.executable, "program.py", *options]))
        if shutil.which(command[0]) is None:
            pytest.skip(f"{command[0]} is not installed")
        opened.append(Terminal(tmp_path, command, controlling=way in (through_make, through_sh)))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()


# A signal's way to the program is the same whatever that does: without a model it takes a fraction of the time.
@pytest.mark.parametrize("way", WAYS[1:])
def test_each_way(open_terminal: Open, way: Callable[[Path, str], list[str]]) -> None:
    terminal = open_terminal(way)
    terminal.wait("Welcome")
    terminal.go_away()
    ended(terminal.program())


@pytest.mark.parametrize("way", [WAYS[0], *(pytest.param(way, marks=pytest.mark.full) for way in WAYS[1:])])
def test_in_mid_answer(open_terminal: Open, way: Callable[[Path, str], list[str]], tmp_path: Path) -> None:
    terminal = open_terminal(way, "--demo", "--set", "ignore_eos=on", "--set", "max_tokens=3000")
    terminal.wait("ctx")
    terminal.type("hi\r")
    terminal.wait("writing")
    terminal.type("half a thought")
    until(lambda: journaled(tmp_path, "half a thought"), "the text is not in the database")
    terminal.go_away()
    ended(terminal.program())
    current = CurrentConversation(tmp_path / "dflash-tui")
    assert current.rescue().texts == ("half a thought",)
    [entry] = current.store.list()
    question, answer = current.store.branches(entry.card.id).path
    assert question.content == "hi"
    assert answer.content


@pytest.mark.parametrize(
    ("options", "seen", "typed"),
    [
        (("--demo",), "dflash", ""),  # while it loads
        pytest.param((), "Welcome", "", marks=pytest.mark.full),  # each way does
        pytest.param(("--demo",), "ctx", "\x0f", marks=pytest.mark.full),  # the list of chats
        pytest.param(("--demo",), "ctx", "\x1bOP", marks=pytest.mark.full),  # help
        (("--demo", "ask", "hi", "--set", "ignore_eos=on", "--set", "max_tokens=3000"), "reading the prompt", ""),
        (("ask", "-"), "", ""),
    ],
    ids=["loading", "first start", "chats", "help", "ask", "ask at its start"],
)
def test_elsewhere(open_terminal: Open, options: tuple[str, ...], seen: str, typed: str, tmp_path: Path) -> None:
    terminal = open_terminal(through_make, *options)
    terminal.wait(seen)
    until((tmp_path / "pid").exists, "it has not begun")
    terminal.type(typed)
    terminal.go_away()
    ended(terminal.program())


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, *(pytest.param(one, marks=pytest.mark.full) for one in (signal.SIGHUP, signal.SIGINT))]
)
def test_a_signal_before_the_first_frame_leaves_the_terminal_as_it_was(open_terminal: Open, number: int) -> None:
    terminal = open_terminal(directly, "--demo", program=PATIENT + BEGIN)
    terminal.wait("\x1b[?1049h")
    os.kill(terminal.program(), number)
    terminal.wait("\x1b[?1049l")
    ended(terminal.program())
    assert terminal.process.wait(LIMIT_S) == 128 + number


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
async def test_each_signal_leaves_with_its_code_and_saves_at_once(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    left: list[int] = []
    limits: list[int] = []
    saved: list[bool] = []
    before = {one: signal.getsignal(one) for one in hangup.ENDS}
    monkeypatch.setattr(hangup, "end_later", limits.append)
    signals = hangup.EndSignals()
    signals.handle(left.append, lambda: saved.append(not left))
    try:
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)  # a second one changes nothing
        await asyncio.sleep(0)
        assert left == limits == [128 + number]
        assert saved == [True]
        signals.restore()
        assert signal.getsignal(number) is signal.SIG_IGN, "the exit has begun"
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def test_while_the_main_thread_waits_for_ever(open_terminal: Open, tmp_path: Path) -> None:
    terminal = open_terminal(through_make, "--demo", program=HELD + BEGIN)
    terminal.wait("Ask anything")  # the model is still being loaded
    terminal.type("kept")
    until(lambda: journaled(tmp_path, "kept"), "the text is not in the database")
    terminal.type("\x14")  # Ctrl+T
    until((tmp_path / "held").exists, "the key was not heard")
    terminal.go_away()
    ended(terminal.program())
    assert CurrentConversation(tmp_path / "dflash-tui").rescue().texts == ("kept",)


def test_what_takes_the_place_of_a_dead_terminal_never_blocks() -> None:
    program = """
import os, select
from dflash_tui.terminal.hangup import _replace
for descriptor in (0, 1):
    _replace(descriptor)
assert not select.select([0], [], [], 0)[0], "input stays silent"
try:
    os.read(0, 1)
except BlockingIOError:
    os.write(1, b"x" * (1 << 20))
    raise SystemExit(7)
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=LIMIT_S, check=False).returncode == 7
