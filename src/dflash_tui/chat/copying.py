"""Copying from the conversation: a message, a block of code, a link."""

from __future__ import annotations

from typing import Any

from textual.screen import Screen

from dflash_core.clean import clean
from dflash_tui.application.amounts import counted
from dflash_tui.chat.branching import Branching
from dflash_tui.chat.controller import Controller
from dflash_tui.chat.messages import Copy
from dflash_tui.chat.state import AppState
from dflash_tui.widgets.markdown import Fence


class Copying(Controller):
    """The user's copies; the app makes them, and says where each went."""

    def __init__(self, state: AppState, screen: Screen[Any], branching: Branching) -> None:
        super().__init__(state, screen)
        self._branching = branching
        self._newest: Fence | None = None  # the last block of code when one was copied
        self._copied: Fence | None = None  # the block copied last

    def message(self) -> None:
        """The chosen message, or the newest answer."""
        answer = self.transcript.answer
        if chosen := self._branching.chosen_text:
            self._copies(chosen, f"the message, {len(chosen)} characters")
        elif answer is not None and answer.text:
            self._copies(answer.text, f"the answer, {len(answer.text)} characters")
        else:
            self.say("no answer to copy yet")

    def code(self) -> None:
        """The last block of code; when repeated, the one before it. A newer block begins again."""
        blocks = list(self.transcript.query(Fence))
        if not blocks:
            self.say("no code to copy yet")
            return
        last = self._copied if blocks[-1] is self._newest else None
        place = ((blocks.index(last) if last in blocks else 0) - 1) % len(blocks)
        self._newest, self._copied = blocks[-1], blocks[place]
        self._copied.scroll_visible(animate=False)
        self._copies(self._copied.code, f"block {place + 1} of {len(blocks)}, {_lines(self._copied.code)}")

    def clicked(self, code: str) -> None:
        """A block of code was clicked."""
        self._copies(code, f"the code, {_lines(code)}")

    def link(self, address: str) -> None:
        """A link written by a model is copied, never opened."""
        self._copies(clean(address), f"the link {clean(address)}")

    def _copies(self, text: str, what: str) -> None:
        self.screen.post_message(Copy(text, what))


def _lines(code: str) -> str:
    return counted(code.count("\n") + 1, "line")
