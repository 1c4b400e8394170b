"""A question with two answers."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen

from dflash_tui.settings.keys import retold
from dflash_tui.widgets.key_hints import KeyHints
from dflash_tui.widgets.literal import Static


class ConfirmScreen(ModalScreen[bool]):
    """Yes by Enter, y or Ctrl+Q; no by Esc or n."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("enter,y,ctrl+q", "answer(True)", "Yes"),
        ("escape,n", "answer(False)", "No"),
    ]

    def __init__(self, question: str, yes: str, no: str) -> None:
        super().__init__()
        self._question, self._yes, self._no = question, yes, no

    def compose(self) -> ComposeResult:
        with Vertical(id="confirm", classes="dialog"):
            yield Static(Content.styled(retold(self._question, self.app), "bold"))
            yield KeyHints(("Enter", self._yes), ("Esc", self._no), id="confirm-keys")

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)
