"""Dialogs with a list to choose from: remedies for a full context, and themes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.events import Key, Paste
from textual.screen import ModalScreen
from textual.widgets.option_list import Option

from dflash_tui.application.amounts import counted, short
from dflash_tui.application.conversations.current import CurrentConversation
from dflash_tui.application.mentions import collapse
from dflash_tui.chat.parts import ChatParts
from dflash_tui.terminal.key_order import is_text
from dflash_tui.text.bars import clip
from dflash_tui.widgets.dialogs import BACK, KeyHints
from dflash_tui.widgets.literal import OptionList, Static

# Fraction of the context that a conversation may take after its oldest turns are left out.
REMAINING_SHARE = 0.5
QUOTED = 160  # characters of each message quoted in a summary
SUMMARY = "Earlier we spoke about this:"


@dataclass(frozen=True, slots=True)
class Fullness:
    """Positions: used by the conversation, of the context, and the model's maximum (0: not known).
    `message`: the approximate number of tokens of a refused message."""

    used: int
    capacity: int
    max_context: int
    message: int = 0

    @property
    def too_long(self) -> bool:
        """The refused message fills the context by itself, so it fits no conversation."""
        return self.message >= self.capacity > 0

    @property
    def longer(self) -> int:
        """A longer context: twice the present one, at most the model's maximum; 0 if the model allows no more."""
        return min(2 * self.capacity, self.max_context) if self.max_context > self.capacity else 0

    def line(self) -> str:
        """The figures of a refusal, as a sentence."""
        limit = f"; the model was made for {self.max_context:,}" if self.max_context else ""
        if self.too_long:
            found = f"The message alone has about {short(self.message)} tokens, the context {self.capacity:,} positions"
            return f"{found}{limit}. The text is back in the prompt; shorten it there."
        return f"The conversation takes {self.used:,} of {self.capacity:,} positions of context{limit}."


def fullness(chat: ChatParts) -> Fullness:
    state, before = chat.state, chat.gauges.used
    capacity = state.session.context_length if state.session is not None else 0
    needed, tokens = state.overlong
    # For megabytes of text the decoder counts only a lower bound. Earlier messages may have no count by this model.
    message = tokens if state.conversation.branches.path else max(needed, tokens)
    return Fullness(max(before, needed), capacity, state.limits.max_context, message)


class FullScreen(ModalScreen[None]):
    """Enter applies a remedy. Esc changes nothing and leaves the message in the prompt."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss", "Back")]

    def __init__(self, chat: ChatParts) -> None:
        super().__init__()
        self._chat, self._full = chat, fullness(chat)
        self._turns = _to_leave_out(chat.state.conversation, self._full)

    def compose(self) -> ComposeResult:
        choices = self.choices()
        with Vertical(id="full", classes="dialog"):
            yield Static(Content.styled(self._full.line(), "bold"))
            if choices:
                yield OptionList(*map(_option, choices))
            yield KeyHints(*[("Enter", "takes it")] * bool(choices), BACK, id="full-keys")

    def choices(self) -> list[tuple[str, str, str]]:
        """What can be done: an id, a label, and what follows from it."""
        it, found = self._full, []
        if it.longer > it.message:
            found.append(("longer", f"reload with {it.longer:,} positions", "the conversation goes on"))
        if it.too_long:
            return found
        if self._turns:
            oldest = "turn" if self._turns == 1 else counted(self._turns, "turn")
            found.append(("leave", f"leave out the oldest {oldest}", "they stay on the screen"))
        return [
            *found,
            ("summary", "new conversation, started with a summary", "you can edit it before it is sent"),
            ("new", "new conversation", "this one stays in the list, Ctrl+O"),
        ]

    def take_text(self, event: Key | Paste) -> None:
        """The app opens this unasked, maybe while the user types: text closes it and goes into the prompt."""
        if is_text(event):
            self.dismiss()
            self._chat.screen.set_focus(self._chat.prompt)

    @on(OptionList.OptionSelected)
    async def _chosen(self, event: OptionList.OptionSelected) -> None:
        """Do what was chosen. The text in the prompt stays."""
        self.dismiss()
        chat, id = self._chat, event.option_id
        if chat.refuses_change():
            return
        chat.state.overlong = (0, 0)
        if id == "longer":
            chat.tuning.set_context(str(self._full.longer))
            chat.program.reload()
        elif id == "leave":
            await chat.conversation.leave_out(self._turns)
        else:
            summary = self._summary() if id == "summary" else ""
            await chat.conversation.start_new()
            if summary:
                typed = chat.prompt.whole
                chat.prompt.fill(f"{summary}\n\n{typed}" if typed.strip() else summary)
        chat.prompt.focus()

    def _summary(self) -> str:
        """The questions and the beginning of each answer, newest last, in at most a quarter of the context."""
        lines: list[str] = []
        for node in self._chat.state.conversation.branches.path:
            text = " ".join(collapse(node.content)[0].split())
            if text:  # results of calls have none
                lines.append(("- I asked: " if node.role == "user" else "  You said: ") + clip(text, QUOTED))
        max_characters = max(self._full.capacity, 64)  # a token has about four
        while len(lines) > 2 and sum(map(len, lines)) > max_characters:
            del lines[:2]
        return "\n".join([SUMMARY, *lines])


def _option(one: tuple[str, str, str]) -> Option:
    id, label, about = one
    return Option(Content.assemble(label, "\n", (f"  {about}", "$foreground 80%")), id=id)


def _to_leave_out(current: CurrentConversation, it: Fullness) -> int:
    """How many of the oldest turns to leave out, so that half of the context is free."""
    sizes: list[int] = []
    for node in current.branches.path:
        if current.unseen(node.id):
            continue
        if node.asks:
            sizes.append(0)
        if sizes:
            sizes[-1] += node.size
    whole, count = sum(sizes), 0
    target = REMAINING_SHARE * whole * min(it.capacity / max(it.used, 1), 1.0)
    while count < len(sizes) - 1 and sum(sizes[count:]) > target:
        count += 1
    return count


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
