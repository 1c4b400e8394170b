"""kill -9 at any moment, of the app in a terminal: what had been seen on the screen is there at the next start."""

from __future__ import annotations

import fcntl
import itertools
import os
import pty
import random
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

from abuse.agreement import damaged
from abuse.home import environment
from abuse.report import Finding, Report
from dflash_tui.application.conversations.current import CurrentConversation
from dflash_tui.application.conversations.history import History

PATIENCE_S = 600.0  # for the first frame on a busy machine
SEEN_S = 10.0  # for a typed word to be drawn
SIZE = (30, 100)
REAL = 10  # one in so many is the whole program with the demo pair
AGAIN = 5  # after one in so many the next start is the app's own, and its screen is what is looked at
HOMES = 20  # kills on one data folder
WORD = re.compile(r"[ta]\d+y\d+x\d+x")
_SEQUENCE = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[()][0-9A-B]|\x1b[@-Z\\-_]|\x1b[=>78]")
NEW, RETRY, ESCAPE, PASTE = "\x0e", "\x12", "\x1b[27u", "\x1b[200~{}\x1b[201~"


class Terminal:
    """A program on a pseudo-terminal of its own; `text` is all it has ever drawn."""

    def __init__(self, command: list[str], home: Path) -> None:
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE, 0, 0))
        paths = os.pathsep.join(path for path in sys.path if path)
        extra = {"TERM": "xterm-256color", "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, cwd=home,
            env={**os.environ, **environment(home), **extra},
        )  # fmt: skip
        os.close(slave)
        self._master, self._drawn = master, bytearray()

    @property
    def text(self) -> str:
        return _SEQUENCE.sub(b"", bytes(self._drawn)).decode(errors="replace")

    def send(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def read(self, seconds: float) -> None:
        """Take what it draws for a while."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) >= 0 and select.select([self._master], [], [], left)[0]:
            try:
                self._drawn += os.read(self._master, 1 << 16)
            except OSError:  # the program is gone
                return

    def shows(self, text: str, patience: float = PATIENCE_S) -> bool:
        """Wait until it has drawn `text`; False where it never does."""
        end = time.monotonic() + patience
        while text not in self.text:
            if time.monotonic() > end or self.process.poll() is not None:
                return False
            self.read(0.1)
        return True

    def kill(self) -> None:
        """SIGKILL; what it had written until then is read."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.read(0.0)
        os.close(self._master)


def _command(mark: str, real: bool) -> list[str]:
    if real:
        return [sys.executable, "-m", "dflash_tui", "--demo", "--set", "max_tokens=200"]
    return [sys.executable, "-m", "abuse.killed", mark]


def _use(terminal: Terminal, rng: random.Random, mark: str) -> str:
    """Type, send and wait at random; returns the words that are left in the prompt."""
    draft: list[str] = []
    for number in range(rng.randrange(1, 7)):
        match rng.choice(("type", "type", "paste", "send", "send", "retry", "new", "wait")):
            case "type":
                draft.append(f"t{mark}x{number}x")
                terminal.send(f" {draft[-1]}")
            case "paste":
                draft.append(f"t{mark}x{number}x")
                terminal.send(PASTE.format(f" {draft[-1]}"))
            case "send":
                terminal.send("\r")
            case "retry":
                terminal.send(RETRY)
            case "new":
                terminal.send(NEW)
            case "wait":
                terminal.read(rng.uniform(0, 0.5))
        terminal.read(rng.choice((0.0, 0.01, 0.05, rng.uniform(0, 0.6))))
    if draft and rng.random() < 0.5:  # else the kill may come before anything was seen
        terminal.shows(draft[0], SEEN_S)
    terminal.read(rng.choice((0.0, 0.0, rng.uniform(0, 0.3), rng.uniform(0, 1.0))))
    return draft[-1] if draft else ""


def kept(folder: Path) -> tuple[set[str], str]:
    """Every word that the next start will have, and what is wrong with the database."""
    current = CurrentConversation(folder)
    texts = list(current.rescue().texts)
    for entry in current.store.list():
        texts += [node.content for node in current.store.branches(entry.card.id).nodes]
    current.close()
    texts += History(folder).entries
    return set(WORD.findall("\n".join(texts))), damaged(folder)


def run(seed: int, folder: Path, *, kills: int = 0, seconds: float = 0.0) -> Report:
    """Start, use and kill until there were `kills` or `seconds` are over."""
    report, began = Report("kills", seed), time.monotonic()
    awaited = ""  # a word that the next start has to show
    for number in itertools.count():
        if (kills and number >= kills) or (seconds and time.monotonic() - began > seconds):
            break
        mark, home = f"{seed}y{number}", folder / f"home{number // HOMES}"
        home.mkdir(parents=True, exist_ok=True)
        data, real = home / "data" / "dflash-tui", number % REAL == REAL - 1
        rng = random.Random(mark)
        terminal = Terminal(_command(mark, real), home)
        try:
            if not terminal.shows("❯"):
                finding = Finding("the app does not start", mark, terminal.text[-300:], str(home))
                report.crashes.append(finding)
                continue
            if awaited and number % HOMES and not terminal.shows(awaited):
                report.lost.append(Finding("the next start does not show what was typed", mark, awaited, str(home)))
            awaited = ""
            if "in the middle of an answer" in terminal.text:
                terminal.send(rng.choice(("\r", ESCAPE)))
            last = _use(terminal, rng, mark)
        finally:
            terminal.kill()
        report.counts["kills"] += 1
        seen = set(WORD.findall(terminal.text))
        if "Traceback" in terminal.text:
            report.crashes.append(Finding("a traceback on the terminal", mark, terminal.text[-300:], str(home)))
        if number % AGAIN == AGAIN - 1 and last in seen and not real:
            awaited = last
            continue
        found, wrong = kept(data)
        if wrong:
            report.crashes.append(Finding("the database is damaged", mark, wrong, str(home)))
        own = {word for word in seen if word[1:].startswith(f"{mark}x")}
        if missing := own - found:
            report.lost.append(Finding("seen on the screen, and gone", mark, " ".join(sorted(missing)[:5]), str(home)))
        report.counts["words"] += len(own)
    report.seconds = time.monotonic() - began
    return report
