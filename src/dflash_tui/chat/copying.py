"""Copying from the conversation: a message, a block of code, a link."""

from __future__ import annotations

from dflash_core.clean import clean
from dflash_tui.chat.branching import Branching
from dflash_tui.chat.desk import Desk
from dflash_tui.text.bars import counted
from dflash_tui.widgets.roomy import Fence


class Copying:
    """Belongs to one chat."""

    def __init__(self, desk: Desk, branching: Branching) -> None:
        self._desk = desk
        self._branching = branching
        self._block = 0  # index of the code block copied last

    def message(self) -> None:
        """The chosen message, or the newest answer."""
        answer = self._desk.transcript.answer
        if chosen := self._branching.chosen_text:
            self._copy(chosen, f"the message, {len(chosen)} characters")
        elif answer is not None and answer.text:
            self._copy(answer.text, f"the answer, {len(answer.text)} characters")
        else:
            self._desk.say("no answer to copy yet")

    def code(self) -> None:
        """The last block of code; when repeated, the one before it."""
        blocks = list(self._desk.transcript.query(Fence))
        if not blocks:
            self._desk.say("no code to copy yet")
            return
        self._block = self._block - 1 if 0 < self._block <= len(blocks) - 1 else len(blocks) - 1
        block = blocks[self._block]
        block.scroll_visible(animate=False)
        self._copy(block.code, f"block {self._block + 1} of {len(blocks)}, {_lines(block.code)}")

    def clicked(self, code: str) -> None:
        """A block of code was clicked."""
        self._copy(code, f"the code, {_lines(code)}")

    def link(self, address: str) -> None:
        """A link written by a model is copied, never opened."""
        self._copy(clean(address), f"the link {clean(address)}")

    def _copy(self, text: str, what: str) -> None:
        self._desk.screen.app.copy_to_clipboard(text)
        self._desk.say(f"copied {what}")


def _lines(code: str) -> str:
    return counted(code.count("\n") + 1, "line")
