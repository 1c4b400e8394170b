"""Asks for one line of text."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input

from dflash_tui.widgets.key_hints import BACK, KeyHints
from dflash_tui.widgets.literal import Static


class LineScreen(ModalScreen[str | None]):
    """Enter gives the text, Esc gives None."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss(None)", "Close")]

    def __init__(self, question: str, text: str = "") -> None:
        super().__init__()
        self._question, self._text = question, text

    def compose(self) -> ComposeResult:
        with Vertical(id="line", classes="dialog"):
            yield Static(Content.styled(self._question, "bold"))
            yield Input(self._text, compact=True)
            yield KeyHints(("Enter", "accepts"), BACK)

    @on(Input.Submitted)
    def _entered(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip())
