"""What every controller of the chat has: state, screen, and the messages that it sends to the screen and the app."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from textual.message import Message
from textual.screen import Screen

from dflash_tui.chat.state import AppState
from dflash_tui.widgets.flash import Flash
from dflash_tui.widgets.inspector import Inspector
from dflash_tui.widgets.prompt import Prompt
from dflash_tui.widgets.transcript import Transcript


class PairLoaded(Message):
    """The requested pair is loaded, and the conversation continues with it."""


class TurnEnded(Message):
    """An answer is complete, stopped or refused."""


@dataclass
class LongTaskEnded(Message):
    """A task that took `seconds` has ended; `what` says how. The user may be elsewhere."""

    seconds: float
    what: str


class Restart(Message):
    """End the program, and start it again with the present pair and conversation."""


@dataclass(eq=False)
class Controller:
    """A part of the chat. Further fields are the controllers that it uses."""

    state: AppState
    screen: Screen[Any]

    @property
    def prompt(self) -> Prompt:
        return self.screen.query_one(Prompt)

    @property
    def transcript(self) -> Transcript:
        return self.screen.query_one(Transcript)

    @property
    def inspector(self) -> Inspector:
        return self.screen.query_one(Inspector)

    def say(self, what: str | Exception) -> None:
        self.screen.query_one(Flash).say(what)

    def refuses_change(self) -> bool:
        """Tell the user, if the conversation cannot be changed."""
        refusal = self.state.unchangeable
        if refusal:
            self.say(refusal)
        return bool(refusal)
