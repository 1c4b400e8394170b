"""What the pages over the chat share: the keys of their scope, notices; tables to choose from; exports; the page of F1.

It has keys and commands, made from the tables that they are bound from.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import Any, ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message_pump import MessagePump
from textual.screen import Screen

from dflash_core.errors import DFlashError
from dflash_core.lab.export import ROWS, check_path, write_rows
from dflash_tui.application.advice import fault, keep_trace
from dflash_tui.application.background import aside
from dflash_tui.application.new_file import new_path
from dflash_tui.chat.parts import ChatParts
from dflash_tui.screens.palette import ActionProvider
from dflash_tui.settings.keys import actions_of, bindings, offered, retold
from dflash_tui.slash.table import SLASH
from dflash_tui.text.glossary import GLOSSARY, PAGES
from dflash_tui.widgets.dialogs import TextScreen, ask_line
from dflash_tui.widgets.flash import Flash
from dflash_tui.widgets.literal import ByWidth, DataTable

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


NARROW, WIDE, TALL = 110, 160, 30  # below these columns, from these columns and rows on, a page has another layout


class Passing(MessagePump):
    """For a screen with callbacks after its drawing. Textual would run them while the next screen is shown."""

    def call_after_refresh(self, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
        def while_here() -> object:
            stack: Sequence[object] = self.app.screen_stack
            return callback(*args, **kwargs) if self in stack else None

        return super().call_after_refresh(while_here)


class Page(Passing, Screen[None]):
    """A screen over the chat. `SCOPE` is its name in the table of keys, which gives its bindings."""

    SCOPE: ClassVar[str] = ""
    COMMANDS = Screen.COMMANDS | {ActionProvider}

    def __init_subclass__(cls, **how: Any) -> None:
        if "SCOPE" in vars(cls):
            cls.BINDINGS = [*bindings(cls.SCOPE)]
        super().__init_subclass__(**how)

    def __init__(self, chat: ChatParts, *, classes: str | None = None) -> None:
        super().__init__(classes=classes)
        self.chat = chat
        self._file_names: dict[str, str] = {}  # names of files, by those that were offered

    def on_resize(self) -> None:
        self.set_class(self.size.width < NARROW, "-narrow")
        self.set_class(self.size.width >= WIDE, "-wide")
        self.set_class(self.size.height >= TALL, "-tall")
        self.resized()

    def resized(self) -> None:
        """The size has changed, and the classes with it."""

    def say(self, what: str | Exception) -> None:
        for flash in self.query(Flash):  # none once the page is closed
            flash.say(what)

    def action_help(self) -> None:
        self.app.push_screen(HelpScreen(getattr(self.focused, "HELP", None) or "", self.SCOPE))

    def action_back(self) -> None:
        self.dismiss()

    def ask_file(self, endings: Sequence[str], name: str, write: Callable[[Path], object]) -> None:
        """Ask for a file with one of these endings, and let `write` fill it, on a thread: a picture takes seconds.
        Offered is `name`, or what was typed instead of it before, which may have been refused."""

        async def fill(path: Path) -> None:
            try:
                await aside(lambda: write(path))
            except DFlashError as error:
                self.say(error)
            except Exception as error:  # of the library that draws; what was measured is still on the page
                self.say(f"{fault(error)}; {keep_trace(traceback.format_exc(), self.chat.state.past.folder)}")
            else:
                self.say(f"written: {path}")

        def named(answer: str) -> None:
            if answer:
                self._file_names[name] = answer
                self.run_worker(fill(check_path(new_path(answer), endings)))

        question = f"Write to which file? Its ending decides: {' '.join(endings)}"
        ask_line(self.app, question, self._file_names.get(name, name), named, self.say)

    def export_rows(self, rows: Sequence[Mapping[str, Any]], name: str) -> None:
        """Write rows of figures to a file that the user names."""
        if rows:
            self.ask_file(ROWS, name, partial(write_rows, rows))
        else:
            self.say("nothing to write yet")


class Rows(DataTable):
    """A table of rows to choose from: what Enter does, and the help of F1 while it has the focus."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "select_cursor", "Choose")]

    def __init__(self, enter: str, help: str, *, id: str) -> None:
        super().__init__(id=id)
        self._enter = enter
        self.HELP = help  # type: ignore[misc]  # of a table, not of its class

    def hint(self, action: str, label: str) -> str:
        return self._enter if action == "select_cursor" else label
