"""Where the user types: one row that grows to six, Enter sends, history at the edges; and completions above it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.document._document import EditResult, Location
from textual.document._edit import Edit
from textual.events import Key, Paste
from textual.message import Message
from textual.widgets import TextArea

from dflash_tui.application.conversations.history import History
from dflash_tui.application.mentions import Offer
from dflash_tui.application.pasted import Pasted
from dflash_tui.settings.keys import actions_of
from dflash_tui.widgets.literal import Static

if TYPE_CHECKING:
    from dflash_tui.application.conversations.current import CurrentConversation


COMMAND = re.compile(r"/([A-Za-z_][\w-]*)(?:\s+(.*))?", re.DOTALL)


def is_command(text: str) -> bool:
    """`/name …` is a command; `/a/path` and `//text` are messages."""
    word = text.strip().split(maxsplit=1)[0] if text.strip() else ""
    return word == "/" or (word.startswith("/") and COMMAND.fullmatch(word) is not None)


def as_message(text: str) -> str:
    """The message to send for text that is no command: a doubled slash becomes a single one."""
    return text[1:] if text.startswith("//") else text


_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # except tabs and line ends


SHOWN = 6


class Completions(Static):
    """Tab takes the marked completion, Up and Down mark another. Enter takes only one marked with Up or Down."""

    def __init__(self) -> None:
        super().__init__("", id="completions")
        self.display = False
        self.rows: Sequence[Offer] = ()
        self.marked = 0
        self.moved = False  # the user has moved the mark

    def show(self, rows: Sequence[Offer]) -> None:
        if rows != self.rows:
            self.rows, self.marked, self.moved = rows, 0, False
            self.display = bool(rows)
            self._draw()

    def move(self, count: int) -> None:
        self.marked, self.moved = (self.marked + count) % len(self.rows), True
        self._draw()

    @property
    def chosen(self) -> Offer | None:
        return self.rows[self.marked] if self.rows else None

    @property
    def taken_by_enter(self) -> bool:
        return bool(self.rows) and self.moved

    def _draw(self) -> None:
        width = max((len(row.label) for row in self.rows), default=0) + 2
        first = min(max(self.marked - SHOWN // 2, 0), max(len(self.rows) - SHOWN, 0))
        parts: list[str | tuple[str, str]] = []
        for number, row in list(enumerate(self.rows))[first : first + SHOWN]:
            mark, style = ("▸", "bold") if number == self.marked else (" ", "")
            parts += [(f"{mark} {row.label:<{width}}", style), (f"{row.about}\n", "$foreground 70%")]
        more = len(self.rows) - first - SHOWN
        parts.append((f"  {more} more" if more > 0 else "", "$foreground 70%"))
        self.update(Content.assemble(*parts).rstrip())


class Prompt(TextArea):
    """A multi-line editor that posts `Submitted` and is then empty. A receiver that refuses the text calls `restore`.

    A long paste appears as a placeholder (`application/pasted.py`): `text` has the placeholder, `whole` the full text.
    """

    HELP = "Enter sends, Ctrl+J or Shift+Enter begins a new line, ↑ and ↓ at the edges bring earlier prompts."
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "send", "Send"),
        Binding("ctrl+j,shift+enter", "newline", "New line", show=False),
        Binding("ctrl+e", "screen.editor", "Editor", id="prompt.editor", show=False),  # Textual: to the line's end
    ]

    COMPONENT_CLASSES: ClassVar[set[str]] = {"text-area--pasted"}

    @dataclass
    class Submitted(Message):
        """Enter was pressed; `text` has left the prompt. `typed`: the text with placeholders for long pastes."""

        text: str
        typed: str

    class Nothing(Message):
        """Enter was pressed in the empty prompt."""

    def __init__(self, history: History, completions: Completions) -> None:
        self._pasted = Pasted()
        hint = "Ask anything   / commands   ↑ history   Ctrl+J new line"
        super().__init__(id="prompt", compact=True, highlight_cursor_line=False, placeholder=hint)
        self.past, self.completions = history, completions
        self.notebook: Callable[[], CurrentConversation] | None = None  # stores what is typed
        self.only_commands = False  # Enter sends no messages: there is no model
        self._returned = ""  # what was given back since the last Enter
        self.examples: Callable[[], Sequence[str]] = tuple  # those that Tab puts into an empty prompt
        self.offers: Callable[[], str] = str  # what Enter does in an empty prompt, in a word

    def post_message(self, message: Message) -> bool:
        """Store every change before it is drawn: a message handler might run many frames later."""
        if isinstance(message, TextArea.Changed) and self.notebook is not None:
            self.notebook().typed(self.text, self._pasted.texts)
        return super().post_message(message)

    @property
    def whole(self) -> str:
        return self._pasted.whole(self.text)

    def fill(self, text: str) -> None:
        """Replace the text by this one, of any length; the cursor comes behind it."""
        self.text = self._pasted.shown(text)
        self.move_cursor(self.document.end)

    def load_text(self, text: str) -> None:
        self._pasted.keep(text)
        super().load_text(text)

    def edit(self, edit: Edit) -> EditResult:
        """A placeholder is deleted as a whole, and nothing is inserted inside it."""
        top, bottom = self._whole_words(edit.top, before=edit.top != edit.bottom), self._whole_words(edit.bottom)
        edit.from_location, edit.to_location = top, bottom
        return super().edit(edit)

    def _whole_words(self, location: Location, *, before: bool = False) -> Location:
        """A place outside a placeholder: the one after it, or with `before` the one before it."""
        row, column = location
        if not column:  # also of the row below the last, which an edit of whole lines ends at
            return location
        for first, end in self._pasted.places(self.document.get_line(row)):
            if first < column < end:
                return row, first if before else end
        return location

    def get_line(self, line_index: int) -> Text:
        line = super().get_line(line_index)
        for place in self._pasted.places(line.plain):
            line.stylize(self.get_component_rich_style("text-area--pasted"), *place)
        return line

    # Undo: the cursor's line may go, and a scrollbar that goes with it asks where the cursor is before it has moved.

    def _undo_batch(self, edits: Sequence[Edit]) -> None:
        if edits:
            self.move_cursor((0, 0))
        super()._undo_batch(edits)

    def _redo_batch(self, edits: Sequence[Edit]) -> None:
        if edits:
            self.move_cursor((0, 0))
        super()._redo_batch(edits)

    @property
    def is_long(self) -> bool:
        return self.wrapped_document.height > 1

    def rewrite(self, text: str) -> None:
        """Replace the text by another, as one step of undo."""
        self.history.checkpoint()
        self.replace(self._pasted.shown(_plain(text)), (0, 0), self.document.end)
        self.move_cursor(self.document.end)
        self.history.checkpoint()

    def restore(self, text: str) -> None:
        """Give text back: after what was given back before, before what has been typed since."""
        text = self._pasted.shown(text)
        before, typed = self._split()
        after = len(self.get_text_range(self.cursor_location, self.document.end))
        self._returned = f"{before}\n{text}" if before else text
        self.text = f"{self._returned}\n{typed}" if typed.strip() else self._returned
        lines = self.text[: max(len(self.text) - after, len(self._returned))].split("\n")
        self.move_cursor((len(lines) - 1, len(lines[-1])))

    def withdraw(self, text: str) -> None:
        """Take `text` out again, where it was given back and stands as it was; what was typed after it stays."""
        before, typed = self._split()
        if before and self._pasted.whole(before) == text:
            self._returned, self.text = "", typed
            self.move_cursor(self.document.end)

    def _split(self) -> tuple[str, str]:
        """What was given back, where it still stands in front, and the rest."""
        back = self._returned
        if back and (self.text == back or self.text.startswith(f"{back}\n")):
            return back, self.text[len(back) + 1 :]
        return "", self.text

    async def _on_key(self, event: Key) -> None:
        taken = self._taken(event.key)
        if taken or event.key == "enter":
            event.stop()
            event.prevent_default()
            if taken:
                self.text = taken
                self.move_cursor(self.document.end)
            else:
                self.action_send()
        elif self._asks(event.key) or event.key.startswith("alt+"):
            # The character of Alt is not text: terminals send Alt+T as Esc and t. The bindings handle it.
            event.prevent_default()
        else:
            await super()._on_key(event)

    def _taken(self, key: str) -> str:
        """What a key puts into the prompt: the marked completion, or the next example to try while the prompt is empty
        or has one as it was offered; "" usually."""
        offered, examples = self.completions, [*self.examples()] if key == "tab" else []
        if offered.chosen is not None and (key == "tab" or (key == "enter" and offered.taken_by_enter)):
            return offered.chosen.text
        if not examples or (self.text and self.text not in examples):
            return ""
        return examples[(examples.index(self.text) + 1) % len(examples)] if self.text else examples[0]

    async def _on_paste(self, event: Paste) -> None:
        """Remove the control characters of a paste: they are not text, and a terminal would execute them."""
        event.prevent_default()
        text = self._pasted.taken(_plain(event.text), len(self.text))
        if not self.read_only and (done := self._replace_via_keyboard(text, *self.selection)):
            self.move_cursor(done.end_location)
            self.focus()

    def _asks(self, key: str) -> bool:
        """In an empty prompt a question mark opens the explanation of the screen's figures."""
        return not self.text and key in self._asking

    @cached_property
    def _asking(self) -> frozenset[str]:
        """The keys of that question. The footer asks about every key, twice a second."""
        return frozenset(key for one in actions_of(self.app) if one.id == "app.explain" for key in one.keys.split(","))

    def check_consume_key(self, key: str, character: str | None = None) -> bool:
        return not self._asks(key) and super().check_consume_key(key, character)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The footer names Enter only if it has an effect."""
        if action == "send" and self.only_commands:
            return is_command(self.text)
        return super().check_action(action, parameters)

    def hint(self, action: str, label: str) -> str:
        if action == "send" and self.completions.taken_by_enter:
            return "Take"
        return self.offers() or label if action == "send" and not self.text else label

    def action_send(self) -> None:
        """Submit the text at once: the next key of the same burst belongs to the next message."""
        if self.text.strip():
            whole = self.whole
            if self.notebook is not None:
                self.notebook().wait(whole)
            self.post_message(self.Submitted(whole, self.text))
            self._returned = self.text = ""
        elif not self.text:
            self.post_message(self.Nothing())

    def action_newline(self) -> None:
        self._replace_via_keyboard("\n", *self.selection)

    def action_cursor_up(self, select: bool = False) -> None:
        if self._mark(-1):
            return
        if not select and self.navigator.is_first_wrapped_line(self.cursor_location):
            self._recall(self.past.previous(self.whole), at_end=False)
        else:
            super().action_cursor_up(select)

    def action_cursor_down(self, select: bool = False) -> None:
        if self._mark(1):
            return
        if not select and self.navigator.is_last_wrapped_line(self.cursor_location):
            self._recall(self.past.next(self.whole), at_end=True)
        else:
            super().action_cursor_down(select)

    def _mark(self, count: int) -> bool:
        if self.completions.chosen is not None:
            self.completions.move(count)
        return self.completions.chosen is not None

    # PageUp, PageDown and, in an empty prompt, End are meant for the conversation.

    async def action_cursor_page_up(self) -> None:  # type: ignore[override]
        await self.run_action("screen.page('up')")

    async def action_cursor_page_down(self) -> None:  # type: ignore[override]
        await self.run_action("screen.page('down')")

    async def action_cursor_line_end(self, select: bool = False) -> None:  # type: ignore[override]
        if not self.text:
            await self.run_action("screen.page('end')")
        super().action_cursor_line_end(select)

    def _recall(self, text: str | None, *, at_end: bool) -> None:
        if text is not None:
            self.fill(text)
            self.move_cursor(self.document.end if at_end or "\n" not in self.text else (0, 0))


def _plain(text: str) -> str:
    """A text from elsewhere as the prompt stores it."""
    return _CONTROLS.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
