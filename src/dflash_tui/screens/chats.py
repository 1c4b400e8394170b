"""Every conversation: search, open, rename, export, delete."""

from __future__ import annotations

import time
from datetime import datetime
from typing import ClassVar

from textual import getters, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal, VerticalScroll
from textual.content import Content
from textual.timer import Timer
from textual.widgets import Input
from textual.widgets.option_list import Option

from dflash_core.clean import clean, one_line
from dflash_tui.application.amounts import ago, counted
from dflash_tui.application.conversations.store import Entry, StoredConversation
from dflash_tui.application.conversations.tool_messages import tool_lines
from dflash_tui.chat.parts import ChatParts
from dflash_tui.screens.page import Page
from dflash_tui.widgets.dialogs import ConfirmScreen
from dflash_tui.widgets.flash import Flash
from dflash_tui.widgets.key_line import KeyLine
from dflash_tui.widgets.literal import OptionList, Static

TYPING_S = 0.15  # the search begins after a typing pause this long
PREVIEW = 4000  # characters
NONE_YET = "No conversation yet. The first message begins one."


class _List(OptionList):
    """The conversations, two rows each."""

    HELP = "↑ and ↓ choose a conversation, Enter opens it, / searches."
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "select", "Open")]

    def hint(self, action: str, label: str) -> str:
        return label if action != "select" or self.row else ""


class ChatsScreen(Page):
    """The list and, if the terminal is wide enough, the end of the chosen conversation next to it."""

    SCOPE = "chats"
    AUTO_FOCUS = "#chats-list"

    def __init__(self, chat: ChatParts) -> None:
        super().__init__(chat)
        self._conversation, self._store = chat.conversation, chat.state.conversation.store
        self._entries: dict[str, Entry] = {}
        self._pause: Timer | None = None
        self._deleted: StoredConversation | None = None  # the last deleted conversation

    def compose(self) -> ComposeResult:
        with Container(id="chats"):
            yield Static("", id="chats-heading")
            with Horizontal(id="chats-line"):
                yield Static(" /", id="chats-mark")
                yield _Search(placeholder="words of a title or message", id="chats-search", compact=True)
            with Horizontal(id="chats-body"):
                yield _List(id="chats-list", compact=True)
                with VerticalScroll(id="chats-beside", can_focus=False):
                    yield Static("", id="chats-preview")
            yield KeyLine()
        yield Flash()

    def on_mount(self) -> None:
        self._list()

    def resized(self) -> None:
        self._draw()

    # The list

    _options = getters.query_one(_List)

    @property
    def _entry(self) -> Entry | None:
        return self._entries.get(self._options.row)

    @property
    def _words(self) -> str:
        return self.query_one(_Search).value.strip()

    def _list(self) -> None:
        """Query the store again."""
        self._entries = {entry.card.id: entry for entry in self._store.list(self._words)}
        self._conversation.files.tell_problems()
        count = len(self._entries)
        what = f"{count} found" if self._words else counted(count, "conversation")
        heading = Content.assemble((" Conversations", "bold $primary"), f"   {what}")
        self.query_one("#chats-heading", Static).update(heading)
        self._draw()

    def _draw(self) -> None:
        """The cursor stays on its conversation, first the present one, if that is listed."""
        present = self.chat.state.conversation.card
        none = Content("No conversation has these words." if self._words else NONE_YET)
        rows = [self._option(entry) for entry in self._entries.values()] or [Option(none, disabled=True)]
        self._options.show_rows(rows, present.id if present is not None else "")
        self._preview()

    def _option(self, entry: Entry) -> Option:
        present = self.chat.state.conversation.card
        mark = "● " if present is not None and entry.card.id == present.id else "  "
        title, excerpt = one_line(entry.card.title), one_line(entry.excerpt)
        about = f"  {ago(entry.card.updated, time.time())} · {counted(entry.messages, 'message')} · "
        shown = Content.assemble(mark, (title, "bold"), "\n", (about, "$foreground 70%"), excerpt)
        return Option(shown, id=entry.card.id)

    @on(OptionList.OptionHighlighted)
    def _preview(self) -> None:
        """Show the end of the conversation under the cursor."""
        entry, shown = self._entry, ""
        if entry is not None and not self.has_class("-narrow"):
            begun = datetime.fromtimestamp(entry.card.created).strftime("%Y-%m-%d %H:%M")
            texts = [f"{entry.card.model or 'no model'}, begun {begun}"]
            for node in self._store.ending(entry.card.id):
                text = ("❯ " if node.asks else "") + node.content.strip("\n")
                texts.append("\n".join([text, *tool_lines(node)]).strip("\n"))
            shown = clean("\n\n".join(texts))
        self.query_one("#chats-preview", Static).update(Content(shown[-PREVIEW:]))
        self.query_one("#chats-beside", VerticalScroll).scroll_end(animate=False)

    @on(Input.Changed, "#chats-search")
    def _typed(self) -> None:
        if self._pause is not None:
            self._pause.stop()
        self._pause = self.set_timer(TYPING_S, self._list)

    @on(Input.Submitted, "#chats-search")
    def _searched(self) -> None:
        self._list()
        self._options.focus()

    # Actions

    def hint(self, action: str, label: str) -> str:
        """The footer's label of an action. While the search has the focus, letters are search text and not keys."""
        if action == "undo":
            return label if self._deleted is not None else ""
        if isinstance(self.focused, Input):
            return label if action in ("back", "help") else ""
        return label if self._entries or action not in ("search", "rename", "export", "delete") else ""

    def _refuses(self) -> bool:
        """Tell the user, if the present conversation cannot be changed now."""
        refusal = self.chat.state.unchangeable
        if refusal:
            self.say(f"Esc closes this list; in the chat, {refusal}")
        return bool(refusal)

    @on(OptionList.OptionSelected)
    async def _opened(self) -> None:
        entry = self._entry
        if entry is not None and not self._refuses():
            words = self._words
            self.dismiss()
            await self._conversation.open(entry.card.id, find=words)

    def action_to_list(self) -> None:
        self._options.focus()

    def action_search(self) -> None:
        self.query_one(_Search).focus()

    async def action_new(self) -> None:
        if not (self.chat.state.busy and self._refuses()):
            self.dismiss()
            await self._conversation.start_new()

    def action_rename(self) -> None:
        def done(message: str | Exception) -> None:
            self._list()
            self.say(message)

        if self._entry is not None:
            self._conversation.files.ask_title(self._entry.card, done)

    def action_export(self) -> None:
        def exported(message: str | Exception) -> None:
            """This screen may have closed before the file was written."""
            (self if self in self.app.screen_stack else self.chat).say(message)

        if self._entry is not None:
            self._conversation.files.ask_file(self._entry.card, exported)

    def action_delete(self) -> None:
        entry = self._entry
        if entry is None:
            return

        def refuses() -> bool:
            present = self.chat.state.conversation.card
            return present is not None and present.id == entry.card.id and self._refuses()

        async def sure(yes: bool | None) -> None:
            if yes and not refuses():  # an answer may have begun while the dialog was open
                self._deleted = await self._conversation.delete(entry.card.id)
                self._list()
                self.say(f"deleted: {entry.card.title}; u restores it")

        if not refuses():
            question = f"Delete “{one_line(entry.card.title)}”, {counted(entry.messages, 'message')}?"
            self.app.push_screen(ConfirmScreen(question, "delete", "keep it"), sure)

    def action_undo(self) -> None:
        if self._deleted is None:
            self.say("nothing has been deleted here")
            return
        self._store.put(self._deleted)
        self.say(f"restored: {self._deleted.card.title}")
        self._deleted = None
        self._list()

    def action_back(self) -> None:
        search = self.query_one(_Search)
        if search.has_focus:
            search.value = ""
            self._options.focus()
        else:
            self.dismiss()


class _Search(Input):
    """Filters the list with every change of its text."""

    HELP = "The list shows conversations that contain all these words. Enter and ↓ go to the list, Esc shows all again."
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "screen.to_list", show=False),
        Binding("enter", "submit", "To the list"),
    ]

    def hint(self, action: str, label: str) -> str:
        return label if action != "submit" or self.screen.query_one(_List).row else ""
