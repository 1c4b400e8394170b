"""Every conversation: search, open, rename, export, delete."""

from __future__ import annotations

import time
from datetime import datetime
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal, VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Input
from textual.widgets.option_list import Option

from dflash_core.clean import clean, one_line
from dflash_tui.application.amounts import ago, counted
from dflash_tui.application.conversations.store import Entry, StoredConversation
from dflash_tui.application.conversations.tool_messages import tool_lines
from dflash_tui.chat.parts import ChatParts
from dflash_tui.screens.help import HelpScreen
from dflash_tui.screens.palette import ActionProvider
from dflash_tui.settings.keys import bindings
from dflash_tui.widgets.dialogs import ConfirmScreen
from dflash_tui.widgets.flash import Flash
from dflash_tui.widgets.key_line import KeyLine
from dflash_tui.widgets.literal import OptionList, Static

TYPING_S = 0.15  # the search begins after a typing pause this long
PREVIEW = 4000  # characters
BESIDE = 110  # minimum number of columns for a preview


class _List(OptionList):
    """The conversations, two rows each. Text typed while this has the focus goes into the search."""

    HELP = "↑ and ↓ choose a conversation, Enter opens it, / searches."
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "select", "Open")]


class ChatsScreen(Screen[None]):
    """The list and, if the terminal is wide enough, the end of the chosen conversation next to it."""

    SCOPE: ClassVar[str] = "chats"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(SCOPE)]
    COMMANDS = Screen.COMMANDS | {ActionProvider}
    AUTO_FOCUS = "#chats-list"

    def __init__(self, chat: ChatParts) -> None:
        super().__init__()
        self._chat = chat
        self._conversation = chat.conversation
        self._entries: list[Entry] = []
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

    def on_resize(self, event: Resize) -> None:
        self.set_class(event.size.width < BESIDE, "-narrow")
        self._draw()

    # The list

    @property
    def _options(self) -> _List:
        return self.query_one(_List)

    @property
    def _entry(self) -> Entry | None:
        place = self._options.highlighted
        return self._entries[place] if place is not None and place < len(self._entries) else None

    def _list(self) -> None:
        """Query the store again; the cursor stays on its conversation if that still exists."""
        chosen = self._entry or self._present()
        search = self.query_one(_Search).value
        self._entries = self._chat.state.conversation.store.list(search)
        self._conversation.files.tell_problems()
        self._draw()
        ids = [entry.card.id for entry in self._entries]
        if ids:
            self._options.highlighted = ids.index(chosen.card.id) if chosen and chosen.card.id in ids else 0
        what = f"{len(ids)} found" if search.strip() else counted(len(ids), "conversation")
        self.query_one("#chats-heading", Static).update(
            Content.assemble((" Conversations", "bold $primary"), f"   {what}")
        )
        self._preview()

    def _present(self) -> Entry | None:
        card = self._chat.state.conversation.card
        return Entry(card, 0, "") if card is not None else None

    def _draw(self) -> None:
        place = self._options.highlighted
        self._options.clear_options()
        self._options.add_options([self._option(entry) for entry in self._entries])
        self._options.highlighted = place
        if not self._entries:
            searched = bool(self.query_one(_Search).value.strip())
            none = (
                "No conversation has these words." if searched else "No conversation yet. The first message begins one."
            )
            self._options.add_option(Option(Content(none), disabled=True))

    def _option(self, entry: Entry) -> Option:
        present = self._chat.state.conversation.card
        mark = "● " if present is not None and entry.card.id == present.id else "  "
        title, excerpt = one_line(entry.card.title), one_line(entry.excerpt)
        about = f"  {ago(entry.card.updated, time.time())} · {counted(entry.messages, 'message')} · "
        return Option(Content.assemble(mark, (title, "bold"), "\n", (about, "$foreground 70%"), excerpt))

    def _preview(self) -> None:
        entry, shown = self._entry, ""
        if entry is not None and not self.has_class("-narrow"):
            card = entry.card
            ending = self._chat.state.conversation.store.ending(card.id)
            texts = [
                "\n".join([("❯ " if node.asks else "") + node.content.strip("\n"), *tool_lines(node)]).strip("\n")
                for node in ending
            ]
            shown = clean("\n\n".join([f"{card.model or 'no model'}, begun {_when(card.created)}", *texts]))
        self.query_one("#chats-preview", Static).update(Content(shown[-PREVIEW:]))
        self.query_one("#chats-beside", VerticalScroll).scroll_end(animate=False)

    @on(OptionList.OptionHighlighted)
    def _highlighted(self) -> None:
        self._preview()

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
        searching = isinstance(self.focused, Input)
        if searching:
            return label if action in ("back", "help") else ""
        return label if self._entries or action not in ("rename", "export", "delete") else ""

    def say(self, what: str | Exception) -> None:
        self.query_one(Flash).say(what)

    @on(OptionList.OptionSelected)
    async def _opened(self) -> None:
        entry = self._entry
        if entry is None:
            return
        if refusal := self._chat.state.unchangeable:
            self.say(_in_the_chat(refusal))
            return
        words = self.query_one(_Search).value.strip()
        self.dismiss()
        await self._conversation.open(entry.card.id, find=words)

    def action_to_list(self) -> None:
        self._options.focus()

    def action_search(self) -> None:
        self.query_one(_Search).focus()

    async def action_new(self) -> None:
        if self._chat.state.busy:
            self.say(_in_the_chat(self._chat.state.unchangeable))
            return
        self.dismiss()
        await self._conversation.start_new()

    def action_rename(self) -> None:
        entry = self._entry
        if entry is None:
            return

        def done(message: str | Exception) -> None:
            self._list()
            self.say(message)

        self._conversation.files.ask_title(entry.card, done)

    def action_export(self) -> None:
        entry = self._entry
        if entry is not None:
            self._conversation.files.ask_file(entry.card, self._exported)

    def _exported(self, message: str | Exception) -> None:
        """This screen may have closed before the file was written."""
        (self if self in self.app.screen_stack else self._chat).say(message)

    def action_delete(self) -> None:
        entry = self._entry
        if entry is None:
            return
        if self._refuses_to_delete(entry):
            return

        async def sure(yes: bool | None) -> None:
            if yes and not self._refuses_to_delete(entry):  # an answer may have begun while the dialog was open
                self._deleted = await self._conversation.delete(entry.card.id)
                self._list()
                self.say(f"deleted: {entry.card.title}; u restores it")

        question = f"Delete “{one_line(entry.card.title)}”, {counted(entry.messages, 'message')}?"
        self.app.push_screen(ConfirmScreen(question, "delete", "keep it"), sure)

    def _refuses_to_delete(self, entry: Entry) -> bool:
        """Tell the user, if this is the present conversation and it cannot be changed now."""
        present, refusal = self._chat.state.conversation.card, self._chat.state.unchangeable
        if not refusal or present is None or present.id != entry.card.id:
            return False
        self.say(_in_the_chat(refusal))
        return True

    def action_undo(self) -> None:
        if self._deleted is None:
            self.say("nothing has been deleted here")
            return
        self._chat.state.conversation.store.put(self._deleted)
        self.say(f"restored: {self._deleted.card.title}")
        self._deleted = None
        self._list()

    def action_help(self) -> None:
        self.app.push_screen(HelpScreen(getattr(self.focused, "HELP", None) or "", self.SCOPE))

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


def _in_the_chat(refusal: str) -> str:
    """A refusal of the chat, worded for this screen: here Esc only closes the list."""
    return f"in the chat, one Esc from here, {refusal}"


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")
