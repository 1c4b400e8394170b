"""The data of a conversation, except for its messages."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from dflash_core.clean import encodable
from dflash_tui.application.conversations.branches import Time, new_id

TITLE = 60  # characters of a title made from a message
LONGEST_TITLE = 500  # characters of one that is typed or imported


@dataclass(frozen=True, slots=True)
class Card:
    """The data of a conversation, except for its messages."""

    title: str
    system: str = ""
    model: str = ""
    id: str = field(default_factory=new_id)
    created: Time = field(default_factory=time.time)
    updated: Time = field(default_factory=time.time)


def title_of(prompt: str) -> str:
    """A title from the first message: its first line, cut at a word."""
    first = " ".join(next((line for line in prompt.splitlines() if line.strip()), "").split())
    return first if len(first) <= TITLE else (first[:TITLE].rsplit(" ", 1)[0].rstrip(" ,;:") + "…")


def short_title(title: str) -> str:
    """A typed or imported title: one line, at most LONGEST_TITLE characters. Control codes are removed when shown."""
    line = " ".join(encodable(title[: 8 * LONGEST_TITLE]).split())
    return line if len(line) <= LONGEST_TITLE else line[: LONGEST_TITLE - 1] + "…"
