"""Keys and commands, made from the tables that they are bound from."""

from __future__ import annotations

from collections.abc import Iterator, Set
from textwrap import wrap
from typing import ClassVar

from textual.binding import BindingType
from textual.content import Content

from dflash_tui.settings.keys import actions_of, offered, retold
from dflash_tui.slash.table import SLASH
from dflash_tui.text.glossary import GLOSSARY, PAGES
from dflash_tui.widgets.dialogs import TextScreen
from dflash_tui.widgets.literal import ByWidth

NAMES = 21  # width of the column of names, in cells
SLIDER = {
    "← →  Shift+← →": "one step, ten steps", "Home  End": "minimum and maximum", "digits, Enter": "type a value",
    "Backspace": "the default", "click, drag, wheel": "wheel on the row that has the focus",
}  # fmt: skip
Part = str | tuple[str, str]


def _row(name: str, what: str, width: int) -> list[Part]:
    """A name and its description: to the right, or below if the name is longer than its column."""
    lines = wrap(what, max(width - NAMES, 16)) or [""]
    apart = "\n" if len(name) > NAMES - 2 else " " * (NAMES - 1 - len(name))
    if apart == "\n":
        apart += " " * NAMES
    return [(f" {name}", "bold"), apart + f"\n{' ' * NAMES}".join(lines) + "\n"]


class HelpScreen(TextScreen):
    """The page that F1 opens. `scope`: the part whose keys are listed; `about`: the help of the widget that had the
    focus; `without`: ids of actions, and names of commands, that have no effect now."""

    BINDINGS: ClassVar[list[BindingType]] = [("f1", "dismiss", "Close")]
    BOX = "help"
    BODY = "help-page"

    def __init__(self, about: str = "", scope: str = "chat", without: Set[str] = frozenset()) -> None:
        super().__init__("Help", ByWidth(self._page))
        self._about, self._scope, self._without = about, scope, without

    def _page(self, width: int) -> Content:
        """Names in one column, descriptions in another, in lines of `width` cells."""
        parts: list[Part] = []
        if self._about:
            parts += [("Here\n", "bold $primary"), f" {retold(self._about, self.app)}\n\n"]
        parts.append(("Keys\n", "bold $primary"))
        for one in sorted(actions_of(self.app), key=lambda one: one.scope != self._scope):
            here = one.scope == self._scope or (one.id.startswith("app.") and one.id != "app.help")
            if here and one.shown and offered(one, self._without):
                parts += _row(one.shown, one.help, width)
        if self._scope == "chat":
            parts += self._commands(width)
        if self._scope in PAGES:
            parts.append(("\nFigures\n", "bold $primary"))
        for name in PAGES.get(self._scope, ()):
            parts += _row(name, GLOSSARY[name], width)
        return Content.assemble(*parts)

    def _commands(self, width: int) -> Iterator[Part]:
        """The commands of the chat, and the keys of a slider."""
        yield ("\nCommands\n", "bold $primary")
        for command in SLASH.values():
            if command.name not in self._without:
                yield from _row(command.usage, command.help, width)
        if "turn.send" not in self._without:
            yield from _row("//text", "a message that begins with a slash", width)
        yield ("\nIn a slider\n", "bold $primary")
        for keys, what in SLIDER.items():
            yield from _row(keys, what, width)
        yield ("\n• marks a parameter that changes with the next turn\n", "$foreground 70%")
