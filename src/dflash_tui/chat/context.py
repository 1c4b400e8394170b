"""What can be done when the conversation fills the context: go on elsewhere, leave out old turns, load with more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash_core.errors import ContextError
from dflash_tui.text.bars import clip, counted, short
from dflash_tui.text.mentions import collapse

if TYPE_CHECKING:
    from dflash_tui.chat.host import ChatHost

KEPT = 0.5  # of the context: what is left of a conversation when its oldest turns are left out
QUOTED = 160  # characters of a message that a summary quotes
SUMMARY = "Earlier we spoke about this:"


@dataclass(frozen=True, slots=True)
class Fullness:
    """Positions: of the conversation, of the context, and those that the model was made for (0: not known).
    `message`: about as many tokens has a message that was refused."""

    used: int
    room: int
    most: int
    message: int = 0

    @property
    def too_long(self) -> bool:
        """The refused message alone fills the context: no conversation has room for it."""
        return self.message >= self.room > 0

    @property
    def longer(self) -> int:
        """A longer context that the model allows, 0 where there is none: twice the present one, at most the model's."""
        return min(2 * self.room, self.most) if self.most > self.room else 0

    def line(self) -> str:
        """The figures of a refusal, in a sentence."""
        most = f"; the model was made for {self.most:,}" if self.most else ""
        if self.too_long:
            return (
                f"The message alone has about {short(self.message)} tokens, the context {self.room:,} positions{most}. "
                "It is in the prompt again, to be shortened."
            )
        return f"The conversation takes {self.used:,} of {self.room:,} positions of context{most}."


@dataclass(frozen=True, slots=True)
class Choice:
    """One way on. `id` is what `take` understands."""

    id: str
    label: str
    about: str


class ContextKeeper:
    """Belongs to one chat."""

    def __init__(self, chat: ChatHost) -> None:
        self._chat = chat
        self._needed = 0  # by the message that was refused last
        self._tokens = 0  # of that message

    def refused(self, error: ContextError, tokens: int) -> None:
        """A message of about `tokens` did not fit: show what can be done. It is in the prompt again."""
        self._needed, self._tokens = error.needed, tokens
        self._chat.open_page("full")

    def answered(self) -> None:
        """What was refused before says nothing any more."""
        self._needed = self._tokens = 0

    @property
    def fullness(self) -> Fullness:
        session = self._chat.session
        room = session.context_length if session is not None else 0
        most = session.limits.most_context if session is not None else 0
        before = self._chat.gauges.used
        # Of megabytes the decoder counts the least that they can be, and no more.
        message = max(self._needed - before, self._tokens, 0)
        return Fullness(max(before, self._needed), room, most, message)

    def choices(self) -> list[Choice]:
        """What is possible now."""
        it, turns = self.fullness, self._to_leave_out()
        found = []
        if it.longer > it.message:
            found.append(Choice("longer", f"reload with {it.longer:,} positions", "the conversation goes on"))
        if it.too_long:
            return found
        if turns:
            found.append(Choice("leave", f"leave out the oldest {counted(turns, 'turn')}", "they stay on the screen"))
        found.append(Choice("summary", "new conversation, begun with a summary", "you can edit it before it is sent"))
        found.append(Choice("new", "new conversation", "this one stays in the list, Ctrl+O"))
        return found

    async def take(self, id: str) -> None:
        """Do what was chosen. What is in the prompt stays there."""
        chat = self._chat
        longer, turns = self.fullness.longer, self._to_leave_out()  # as they were offered
        self.answered()
        if id == "longer":
            chat.tuning.ask_for_context(str(longer))
            chat.program.reload()
        elif id == "leave":
            await chat.conversation.leave_out(turns)
        elif id in ("summary", "new"):
            summary = self.summary() if id == "summary" else ""
            await chat.action_clear()
            if summary:
                typed = chat.prompt.whole
                chat.prompt.fill(f"{summary}\n\n{typed}" if typed.strip() else summary)
                chat.prompt.move_cursor(chat.prompt.document.end)
        chat.prompt.focus()

    def summary(self) -> str:
        """The questions and how each answer began, newest last, in a quarter of the context at most."""
        lines: list[str] = []
        for node in self._chat.conversation.current.branches.path:
            text = " ".join(collapse(node.content)[0].split())
            if text:
                lines.append(("- I asked: " if node.role == "user" else "  You said: ") + clip(text, QUOTED))
        most = max(self.fullness.room, 64)  # characters: four of them are a token
        while len(lines) > 2 and sum(map(len, lines)) > most:
            del lines[:2]
        return "\n".join([SUMMARY, *lines])

    def _to_leave_out(self) -> int:
        """How many of the oldest turns to leave out, so that half of the context is free."""
        current, it = self._chat.conversation.current, self.fullness
        path = [node for node in current.branches.path if not current.unseen(node.id)]
        sizes: list[int] = []
        for node in path:
            if node.role == "user":
                sizes.append(0)
            if sizes:
                sizes[-1] += len(node.content) + len(node.thinking)
        whole, count = sum(sizes), 0
        while count < len(sizes) - 1 and sum(sizes[count:]) > KEPT * whole * min(it.room / max(it.used, 1), 1.0):
            count += 1
        return count
