"""Messages from the chat's controllers to its screen and the app."""

from __future__ import annotations

from dataclasses import dataclass

from textual.message import Message


class PairLoaded(Message):
    """The requested pair is loaded, and the conversation continues with it."""


class TurnEnded(Message):
    """An answer is complete, stopped or refused."""


@dataclass
class Copy(Message):
    """Copy `text`, and show where it went; `what` names it."""

    text: str
    what: str


@dataclass
class LongTaskEnded(Message):
    """A task that took `seconds` has ended; `what` says how. The user may be elsewhere."""

    seconds: float
    what: str


class Restart(Message):
    """End the program, and start it again with the present pair and conversation."""
