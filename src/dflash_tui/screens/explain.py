"""What a figure or a parameter means: a list of the panel's terms, and the text of the chosen one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.events import Key, Paste
from textual.screen import ModalScreen
from textual.widgets.option_list import Option

from dflash_tui.settings.keys import retold
from dflash_tui.terminal.key_order import TakesText, is_text
from dflash_tui.text.glossary import GLOSSARY, QUOTED, figure, reading
from dflash_tui.widgets.literal import OptionList, Static
from dflash_tui.widgets.ways import BACK, Ways


class ExplainScreen(ModalScreen[None]):
    """Up and down choose, Esc closes. Text typed while this covers the chat goes into the prompt.

    `keys`: glossary keys in screen order. `typed`: the text in the prompt that opened this page. It returns to the
    prompt if the user goes on typing.
    """

    BINDINGS: ClassVar[list[BindingType]] = [("escape,enter,question_mark", "dismiss", "Close")]
    LETTERS_MOVE: ClassVar[bool] = True

    def __init__(self, keys: Sequence[str], typed: str = "") -> None:
        super().__init__()
        self._keys, self._typed = tuple(keys), typed

    def compose(self) -> ComposeResult:
        one = len(self._keys) == 1
        with Vertical(id="explain", classes="dialog"):
            head = GLOSSARY[self._keys[0]].name if one else "What the figures here mean"
            yield Static(Content.styled(head, figure(QUOTED, "bold")), id="explain-head")
            options = OptionList(*(Option(_row(key), id=key) for key in self._keys), id="explain-terms", compact=True)
            options.display = not one
            yield options
            with VerticalScroll(can_focus=one):
                yield Static(self._text(self._keys[0]), id="explain-text")
            yield Ways(*([] if one else [("↑ ↓", "another")]), BACK, id="explain-ways")

    def on_mount(self) -> None:
        if len(self._keys) == 1:
            self.query_one(VerticalScroll).focus()
        else:
            self.query_one(OptionList).focus()

    @on(OptionList.OptionHighlighted)
    def _highlighted(self, event: OptionList.OptionHighlighted) -> None:
        if event.option_id is not None:
            self.query_one("#explain-text", Static).update(self._text(event.option_id))

    def _text(self, key: str) -> Content:
        term = GLOSSARY[key]
        lead = "" if len(self._keys) == 1 else f"{term.name}: "
        parts = [(lead, "bold $primary"), (f"{term.sentence}.\n", "bold")]
        parts += [(f"\n{retold(term.more, self.app)}\n", "")] if term.more else []
        parts.append((f"\nread on: {reading(key)}", "$foreground 70%"))
        return Content.assemble(*parts).stylize(figure(QUOTED))

    def take_text(self, event: Key | Paste) -> None:
        """Over the chat, typed text closes the page and goes into the prompt, after the text that opened the page."""
        below = self.app.screen_stack[-2]
        if not is_text(event) or not isinstance(below, TakesText) or getattr(event, "key", "") == "question_mark":
            return
        self.dismiss()
        if self._typed:
            below.query_one("#prompt").insert(self._typed)  # type: ignore[attr-defined]
        below.take_text(event)


def _row(key: str) -> Content:
    term = GLOSSARY[key]
    return Content.assemble((f"{term.name:<18} ", "bold"), (term.sentence, "$foreground 80%")).stylize(figure(QUOTED))
