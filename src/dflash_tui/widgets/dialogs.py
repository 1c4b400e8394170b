"""Small dialogs: a question with two answers, one line of text, a text to read; and the line of their keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from textual import on
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.events import Key, Paste
from textual.screen import ModalScreen
from textual.visual import VisualType
from textual.widgets import Input

from dflash_tui.settings.keys import retold
from dflash_tui.terminal.key_order import is_text
from dflash_tui.widgets.flash import reported
from dflash_tui.widgets.literal import Static

KeyHint = tuple[str, str]
BACK: KeyHint = ("Esc", "back")


class KeyHints(Static):
    """Each key as written, and what it does; changed with `tell`."""

    def __init__(self, *hints: KeyHint, id: str | None = None) -> None:
        super().__init__(id=id)
        self.tell(*hints)

    def tell(self, *hints: KeyHint) -> None:
        self.hints = hints
        shown = (Content.assemble((key, "bold $accent"), f" {what}") for key, what in hints)
        self.update(Content("   ").join(shown))


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


class OfferScreen(ConfirmScreen):
    """The app opens it unasked, maybe while the user types: text closes it and goes to what has the focus below."""

    def take_text(self, event: Key | Paste) -> None:
        if is_text(event):
            self.dismiss(False)


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


def ask_line(
    app: App[Any], question: str, text: str, take: Callable[[str], str | None], say: Callable[[str | Exception], object]
) -> None:
    """Ask for a line, and hand it to `take`; `say` gets what that returns, or its refusal."""

    def answered(line: str | None) -> None:
        if line is not None:
            with reported(say):
                if message := take(line):
                    say(message)

    app.push_screen(LineScreen(question, text), answered)


class TextScreen(ModalScreen[None]):
    """Esc or Enter closes it. `BOX` and `BODY` are the ids of the dialog and of its text."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,enter,q", "dismiss", "Close")]
    BOX: ClassVar[str] = "text"
    BODY: ClassVar[str] = "text-body"

    def __init__(self, title: str, text: VisualType = "") -> None:
        super().__init__()
        self._title, self._text = title, text

    def compose(self) -> ComposeResult:
        with Vertical(id=self.BOX, classes="dialog"):
            yield Static(Content.assemble((self._title, "bold"), ("   Esc closes", "$foreground 80%")))
            with VerticalScroll():
                yield Static(self._text, id=self.BODY)

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
