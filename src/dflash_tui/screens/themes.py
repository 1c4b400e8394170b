"""Themes, previewed while the cursor is on them: Enter saves one, Esc restores the previous one."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets.option_list import Option

from dflash_tui.chat.parts import ChatParts
from dflash_tui.widgets.literal import OptionList, Static


class ThemesScreen(ModalScreen[None]):
    """The whole app takes the theme under the cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "back", "Back")]

    def __init__(self, chat: ChatParts) -> None:
        super().__init__()
        self._chat = chat
        self._before = chat.screen.app.theme
        # The app's own themes come first: every screen was designed for them.
        self._names = sorted(chat.screen.app.available_themes, key=lambda name: (not name.startswith("dflash-"), name))

    def compose(self) -> ComposeResult:
        with Vertical(id="themes", classes="dialog"):
            yield Static(Content.assemble(("Theme", "bold"), ("   Enter saves, Esc restores", "$foreground 70%")))
            yield OptionList(*(Option(name, id=name) for name in self._names))

    def on_mount(self) -> None:
        options = self.query_one(OptionList)
        options.highlighted = self._names.index(self._before)
        options.focus()

    @on(OptionList.OptionHighlighted)
    def _try(self, event: OptionList.OptionHighlighted) -> None:
        if event.option_id:
            self.app.theme = event.option_id

    @on(OptionList.OptionSelected)
    def _keep(self, event: OptionList.OptionSelected) -> None:
        self.dismiss()
        self._chat.program.use_theme(event.option_id or self._before)

    def action_back(self) -> None:
        self.app.theme = self._before
        self.dismiss()
