"""The whole program in a tmux window: keys are sent, the screen is read, and tests wait for what it shows."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

PATIENCE_S = 600.0  # loading torch on a busy machine


class Terminal:
    """A program in a tmux window of its own server."""

    def __init__(
        self, folder: Path, command: list[str], columns: int, rows: int, environment: dict[str, str] | None = None
    ) -> None:
        self.socket, self.code = folder / "socket", folder / "exit-code"
        kinds = ("DATA", "CONFIG", "CACHE", "STATE")
        home = {"HOME": str(folder)} | {f"XDG_{kind}_HOME": str(folder) for kind in kinds}
        # tmux gives its windows a TERM of its own.
        extra = "".join(f"{name}={value} " for name, value in (environment or {}).items())
        line = extra + subprocess.list2cmdline(command) + f"; echo $? > {self.code}"
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", str(rows), line, **home)

    def tmux(self, *words: str, **environment: str) -> str:
        command = ["tmux", "-S", str(self.socket), *words]
        env = {**os.environ, "TERM": "xterm-256color", **environment}
        return subprocess.run(command, capture_output=True, text=True, env=env, check=True, timeout=600).stdout

    def keys(self, *keys: str) -> None:
        self.tmux("send-keys", *keys)

    def type(self, text: str) -> None:
        self.tmux("send-keys", "-l", text)

    def screen(self) -> str:
        return self.tmux("capture-pane", "-p")

    def wait(self, seen: Callable[[str], bool], what: str) -> str:
        """The first screen that satisfies `seen`."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            screen = self.screen()
            if seen(screen):
                return screen
            time.sleep(0.1)
        pytest.fail(f"never seen: {what}\n{screen}")

    def exit_code(self) -> int:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if self.code.exists() and self.code.read_text().strip():
                return int(self.code.read_text())
            time.sleep(0.1)
        pytest.fail("the program did not end")

    def program(self) -> int:
        """The process id of what runs in the window."""
        shell = self.tmux("display", "-p", "#{pane_pid}").strip()
        children = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
        return next(int(pid) for pid, parent in (line.split() for line in children.splitlines()) if parent == shell)

    def close(self) -> None:
        subprocess.run(["tmux", "-S", str(self.socket), "kill-server"], capture_output=True, check=False)
