"""Sent prompts, for the arrow keys; stored in the user's data folder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from dflash_core.clean import encodable
from dflash_core.files import writing
from dflash_core.user_folders import user_folder

KEEP = 1000
KEEP_CHARACTERS = 1_000_000  # characters: prompts with pasted files reach this limit first


def data_folder() -> Path:
    """Where prompts and conversations are stored by default."""
    return user_folder("data")


class History:
    """Earlier prompts, oldest first, with a present position. `problem` says, once, that the folder is unusable."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = folder / "prompts.jsonl"
        self.problem = ""
        self._failed = False
        self.entries: tuple[str, ...] = ()
        try:
            self.entries = self._stored()
        except OSError as error:
            self._fail(f"prompt history {self._file} cannot be read: {error.strerror}; starting without it")
        self._place = len(self.entries)
        self._edits: dict[int, str] = {}  # by place: what is typed there, until a prompt is added

    def add(self, prompt: str) -> None:
        """Add a prompt and move to the end. A repeat of the last one is not stored twice."""
        if prompt.strip() and self.entries[-1:] != (prompt,):
            self.entries = _newest((*self.entries, prompt))
            try:
                with _locked(self.folder):
                    now = _newest((*self._stored(), prompt))  # with what another app has added
                    with writing(self._file, mode=0o600) as file:
                        file.write("".join(json.dumps({"prompt": one}) + "\n" for one in now).encode())
            except OSError as error:
                self._fail(f"{self._file} cannot be written: {error.strerror}; prompts stay only until the app closes")
        self._place = len(self.entries)
        self._edits.clear()

    def previous(self, current: str) -> str | None:
        """The prompt before the present position, where `current` is stored; None if there is none."""
        return self._go(self._place - 1, current)

    def next(self, current: str) -> str | None:
        """The prompt after the present position, where `current` is stored; the text typed last follows the newest."""
        return self._go(self._place + 1, current)

    def _go(self, place: int, current: str) -> str | None:
        if not 0 <= place <= len(self.entries):
            return None
        self._edits[self._place] = current
        self._place = place
        return self._edits[place] if place in self._edits else self.entries[place]

    def _stored(self) -> tuple[str, ...]:
        """The prompts of the file. Raises OSError."""
        if self._file.exists() and not self._file.is_file():  # a link to /dev/null, which root would replace
            raise OSError(errno.EINVAL, "it is not a regular file")
        try:
            lines = self._file.read_text(encoding="utf-8", errors="replace").split("\n")
        except (FileNotFoundError, NotADirectoryError):
            return ()
        return _newest([prompt for line in lines if (prompt := _prompt(line)) is not None])

    def _fail(self, problem: str) -> None:
        """Only the first problem is reported; later ones are its consequences."""
        if not self._failed:
            self._failed, self.problem = True, problem


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """No other app writes meanwhile. One that was stopped in the middle of writing is not waited for longer than a
    second. Raises OSError where there can be no such folder."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            for _ in range(200):
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                time.sleep(0.005)
        yield
    finally:
        os.close(lock)


def _prompt(line: str) -> str | None:
    """The prompt of a line; None if it is invalid. A line torn by a crash loses only that prompt."""
    try:
        prompt = json.loads(line)["prompt"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return encodable(prompt) if isinstance(prompt, str) else None


def _newest(entries: Sequence[str]) -> tuple[str, ...]:
    """The last of `entries` within the limits, oldest first; the very last one always."""
    sizes = itertools.accumulate(map(len, reversed(entries[-KEEP:])))
    return tuple(entries[-max(sum(size <= KEEP_CHARACTERS for size in sizes), 1) :])
