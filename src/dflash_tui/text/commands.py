"""Tells slash commands from messages."""

from __future__ import annotations

import re

COMMAND = re.compile(r"/([A-Za-z_][\w-]*)(?:\s+(.*))?", re.DOTALL)


def is_command(text: str) -> bool:
    """`/name …` is a command; `/a/path` and `//text` are messages."""
    word = text.strip().split(maxsplit=1)[0] if text.strip() else ""
    return word == "/" or (word.startswith("/") and COMMAND.fullmatch(word) is not None)


def as_message(text: str) -> str:
    """The message to send for text that is no command: a doubled slash becomes a single one."""
    return text[1:] if text.startswith("//") else text
