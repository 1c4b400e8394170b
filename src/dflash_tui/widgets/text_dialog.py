"""A text to read: a table that an experiment made, an explanation."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen

from dflash_tui.widgets.literal import Static


class TextScreen(ModalScreen[None]):
    """Esc or Enter closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,enter,q", "dismiss", "Close")]

    def __init__(self, title: str, text: str | Content) -> None:
        super().__init__()
        self._title, self._text = title, text

    def compose(self) -> ComposeResult:
        with Vertical(id="text", classes="dialog"):
            yield Static(Content.assemble((self._title, "bold"), ("   Esc closes", "$foreground 80%")))
            with VerticalScroll():
                yield Static(self._text, id="text-body")

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
