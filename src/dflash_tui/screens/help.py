"""Keys and commands, made from the tables that they are bound from."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen

from dflash_tui.settings.keys import actions_of, retold
from dflash_tui.slash.table import SLASH
from dflash_tui.text.glossary import QUOTED, figure
from dflash_tui.widgets.literal import Static


class HelpScreen(ModalScreen[None]):
    """F1. `about` is the help of the widget that had the focus."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,f1,q", "dismiss", "Close")]

    def __init__(self, about: str = "") -> None:
        super().__init__()
        self._about = about

    def compose(self) -> ComposeResult:
        with Vertical(id="help", classes="dialog"):
            yield Static(Content.assemble(("Help", "bold"), ("   Esc closes", "$foreground 70%")))
            with VerticalScroll():
                yield Static(self._page(), id="help-page")

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()

    def _page(self) -> Content:
        parts: list[str | tuple[str, str]] = []
        if self._about:
            parts += [("Here\n", "bold $primary"), f" {retold(self._about, self.app)}\n\n"]
        parts.append(("Keys\n", "bold $primary"))
        below = self.app.screen_stack[-2]
        scope = getattr(below, "SCOPE", "chat")
        for one in actions_of(self.app):
            if one.shown and (one.scope == scope or (one.id.startswith("app.") and one.id != "app.help")):
                parts += [(f" {one.shown:<20}", "bold"), f"{one.help}\n"]
        if scope != "chat":
            return Content.assemble(*parts).stylize(figure(QUOTED))
        parts.append(("\nCommands\n", "bold $primary"))
        for command in SLASH.values():
            parts += [(f" {command.usage:<20}", "bold"), f"{command.help}\n"]
        parts += [(f" {'//text':<20}", "bold"), "a message that begins with a slash\n"]
        parts.append(("\nIn a slider\n", "bold $primary"))
        for keys, what in (
            ("← →  Shift+← →", "one step, ten steps"),
            ("Home  End", "least and most"),
            ("digits, Enter", "type a value"),
            ("Backspace", "the default"),
            ("click, drag, wheel", "wheel on the row that has the focus"),
        ):
            parts += [(f" {keys:<20}", "bold"), f"{what}\n"]
        parts.append(("\n• marks a parameter that changes with the next turn\n", "$foreground 70%"))
        return Content.assemble(*parts).stylize(figure(QUOTED))
