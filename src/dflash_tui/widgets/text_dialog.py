"""A text to read: a table that an experiment made, an explanation."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen

from dflash_tui.text.glossary import QUOTED, figure
from dflash_tui.widgets.literal import Static


class TextScreen(ModalScreen[None]):
    """Esc or Enter closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,enter,q", "dismiss", "Close")]

    def __init__(self, title: str, text: str, figures: str = QUOTED) -> None:
        """`figures`: the glossary key of the numbers in the text."""
        super().__init__()
        self._title, self._text, self._figures = title, text, figures

    def compose(self) -> ComposeResult:
        with Vertical(id="text", classes="dialog"):
            yield Static(Content.assemble((self._title, "bold"), ("   Esc closes", "$foreground 80%")))
            with VerticalScroll():
                yield Static(Content.styled(self._text, figure(self._figures)), id="text-body")

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
