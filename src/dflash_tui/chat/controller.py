"""What every controller of the chat has: the state, and the screen with the widgets that it changes."""

from __future__ import annotations

from typing import Any

from textual.screen import Screen

from dflash_tui.chat.state import AppState
from dflash_tui.widgets.flash import Flash
from dflash_tui.widgets.inspector import Inspector
from dflash_tui.widgets.prompt import Prompt
from dflash_tui.widgets.transcript import Transcript


class Controller:
    """A part of the chat."""

    def __init__(self, state: AppState, screen: Screen[Any]) -> None:
        self.state, self.screen = state, screen

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
        """Show a short notice above the prompt, or why something is refused."""
        self.screen.query_one(Flash).say(what)

    def refuses_change(self) -> bool:
        """Tell the user, if the conversation cannot be changed."""
        refusal = self.state.unchangeable
        if refusal:
            self.say(refusal)
        return bool(refusal)
