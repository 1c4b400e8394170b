"""Prompts that were sent, and the one that was not sent yet, kept in the user's data folder."""

from __future__ import annotations

import json
import os
from pathlib import Path

KEEP = 1000


def data_folder() -> Path:
    """Where prompts are kept unless the app is told otherwise."""
    import platformdirs

    return Path(platformdirs.user_data_dir("dflash-tui", appauthor=False))


class History:
    """Earlier prompts, oldest first, with a place in them. `problem` says, once, that the folder is of no use."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = folder / "prompts.jsonl"
        self._draft_file = folder / "draft.txt"
        self.problem = ""
        self._failed = False
        self._torn = False
        self._entries = self._load()
        self._place = len(self._entries)
        self._draft = ""
        self._known_draft = ""  # what this app has read from the draft's file, or written there

    @property
    def entries(self) -> tuple[str, ...]:
        return tuple(self._entries)

    def add(self, prompt: str) -> None:
        """Remember a prompt and step to the end. A repeat of the last one is not kept twice."""
        if prompt.strip() and (not self._entries or self._entries[-1] != prompt):
            self._entries.append(prompt)
            line = json.dumps({"prompt": prompt}, ensure_ascii=False) + "\n"
            self._write(self._file, "\n" + line if self._torn else line, append=True)
            self._torn = False
        self._place = len(self._entries)
        self._draft = ""

    def previous(self, current: str) -> str | None:
        """The prompt before the present place; `current` is kept as the draft when leaving the end."""
        if self._place == 0:
            return None
        if self._place == len(self._entries):
            self._draft = current
        self._place -= 1
        return self._entries[self._place]

    def next(self) -> str | None:
        """The prompt after the present place; after the newest comes the draft."""
        if self._place >= len(self._entries):
            return None
        self._place += 1
        return self._draft if self._place == len(self._entries) else self._entries[self._place]

    def save_draft(self, text: str) -> None:
        """Keep unsent text for the next start. What another running app left there meanwhile goes into the history."""
        mine, stored = self._known_draft, self.load_draft()
        if stored not in (mine, text):
            self.add(stored)
        if text.strip() or stored:
            self._write(self._draft_file, text, append=False)
        self._known_draft = text

    def load_draft(self) -> str:
        try:
            self._known_draft = self._draft_file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            self._known_draft = ""
        return self._known_draft

    def save_conversation(self, text: str) -> Path | None:
        """Keep a conversation that ends before its time; says where it is, None where it could not be written."""
        path = self.folder / "last-conversation.md"
        return path if text and self._write(path, text, append=False) else None

    def _load(self) -> list[str]:
        try:
            *lines, last = self._file.read_text(encoding="utf-8", errors="replace").split("\n")
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            self._fail(f"prompt history {self._file} cannot be read: {error.strerror}; starting without it")
            return []
        self._torn = bool(last)
        entries = []
        for line in (*lines, last):
            try:
                prompt = json.loads(line)["prompt"]
            except (ValueError, KeyError, TypeError):
                continue  # a torn last line after a crash costs that line only
            if isinstance(prompt, str):
                entries.append(prompt)
        return entries[-KEEP:]

    def _write(self, path: Path, text: str, *, append: bool) -> bool:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if append else os.O_TRUNC)
            with os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8", errors="replace") as file:
                file.write(text)
            return True
        except OSError as error:
            self._fail(f"{path} cannot be written: {error.strerror}; prompts are kept until the app closes")
            return False

    def _fail(self, problem: str) -> None:
        """The first problem is the one to tell; later ones are its consequences."""
        if not self._failed:
            self._failed, self.problem = True, problem
