"""The context is full, or nearly full: a list of remedies to choose from."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.events import Key, Paste
from textual.screen import ModalScreen
from textual.widgets.option_list import Option

from dflash_tui.chat.parts import ChatParts
from dflash_tui.terminal.key_order import is_text
from dflash_tui.widgets.dialogs import BACK, KeyHints
from dflash_tui.widgets.literal import OptionList, Static


class FullScreen(ModalScreen[None]):
    """Enter applies a remedy. Esc changes nothing and leaves the message in the prompt."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss", "Back")]

    def __init__(self, chat: ChatParts) -> None:
        super().__init__()
        self._chat = chat

    def compose(self) -> ComposeResult:
        choices = self._chat.context.choices()
        with Vertical(id="full", classes="dialog"):
            yield Static(Content.styled(self._chat.context.fullness.line(), "bold"))
            if choices:
                yield OptionList(*map(_option, choices))
            yield KeyHints(*[("Enter", "takes it")] * bool(choices), BACK, id="full-keys")

    def on_mount(self) -> None:
        for options in self.query(OptionList):
            options.focus()

    def take_text(self, event: Key | Paste) -> None:
        """The app opens this unasked, maybe while the user types: text closes it and goes into the prompt."""
        if is_text(event):
            self.dismiss()
            self._chat.screen.set_focus(self._chat.prompt)

    @on(OptionList.OptionSelected)
    async def _chosen(self, event: OptionList.OptionSelected) -> None:
        self.dismiss()
        if not self._chat.refuses_change():
            await self._chat.context.take(event.option_id or "")


def _option(one: tuple[str, str, str]) -> Option:
    id, label, about = one
    return Option(Content.assemble(label, "\n", (f"  {about}", "$foreground 80%")), id=id)
