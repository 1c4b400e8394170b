"""Options when the context is full: a new conversation, without old turns, or with a longer context."""

from __future__ import annotations

from dataclasses import dataclass

from dflash_tui.application.amounts import counted, short
from dflash_tui.application.mentions import collapse
from dflash_tui.chat.controller import Controller
from dflash_tui.chat.conversation import ConversationController
from dflash_tui.chat.gauges import Gauges
from dflash_tui.chat.program import ProgramController
from dflash_tui.chat.tuning import Tuning
from dflash_tui.text.bars import clip

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
            alone = f"The message alone has about {short(self.message)} tokens, the context {self.capacity:,} positions"
            return f"{alone}{limit}. It is back in the prompt; shorten it."
        return f"The conversation takes {self.used:,} of {self.capacity:,} positions of context{limit}."


@dataclass(eq=False)
class ContextKeeper(Controller):
    _gauges: Gauges
    _tuning: Tuning
    _conversation: ConversationController
    _program: ProgramController

    @property
    def fullness(self) -> Fullness:
        capacity = self.state.session.context_length if self.state.session is not None else 0
        before, (needed, tokens) = self._gauges.used, self.state.overlong
        # For megabytes of text the decoder counts only a lower bound.
        message = max(needed - before, tokens, 0)
        return Fullness(max(before, needed), capacity, self.state.limits.max_context, message)

    def choices(self) -> list[tuple[str, str, str]]:
        """What can be done: the argument of `take`, a label, and what follows from it."""
        it, turns = self.fullness, self._to_leave_out()
        found = []
        if it.longer > it.message:
            found.append(("longer", f"reload with {it.longer:,} positions", "the conversation goes on"))
        if it.too_long:
            return found
        if turns:
            oldest = "turn" if turns == 1 else counted(turns, "turn")
            found.append(("leave", f"leave out the oldest {oldest}", "they stay on the screen"))
        return [
            *found,
            ("summary", "new conversation, started with a summary", "you can edit it before it is sent"),
            ("new", "new conversation", "this one stays in the list, Ctrl+O"),
        ]

    async def take(self, id: str) -> None:
        """Do what was chosen. The text in the prompt stays."""
        longer, turns = self.fullness.longer, self._to_leave_out()  # as they were offered
        self.state.overlong = (0, 0)
        if id == "longer":
            self._tuning.set_context(str(longer))
            self._program.reload()
        elif id == "leave":
            await self._conversation.leave_out(turns)
        elif id in ("summary", "new"):
            summary = self.summary() if id == "summary" else ""
            await self._conversation.start_new()
            if summary:
                typed = self.prompt.whole
                self.prompt.fill(f"{summary}\n\n{typed}" if typed.strip() else summary)
        self.prompt.focus()

    def summary(self) -> str:
        """The questions and the beginning of each answer, newest last, in at most a quarter of the context."""
        lines: list[str] = []
        for node in self.state.conversation.branches.path:
            text = " ".join(collapse(node.content)[0].split())
            if text:  # results of calls have none
                lines.append(("- I asked: " if node.role == "user" else "  You said: ") + clip(text, QUOTED))
        max_characters = max(self.fullness.capacity, 64)  # a token has about four
        while len(lines) > 2 and sum(map(len, lines)) > max_characters:
            del lines[:2]
        return "\n".join([SUMMARY, *lines])

    def _to_leave_out(self) -> int:
        """How many of the oldest turns to leave out, so that half of the context is free."""
        current, it = self.state.conversation, self.fullness
        path = [node for node in current.branches.path if not current.unseen(node.id)]
        sizes: list[int] = []
        for node in path:
            if node.asks:
                sizes.append(0)
            if sizes:
                sizes[-1] += node.size
        whole, count = sum(sizes), 0
        target = REMAINING_SHARE * whole * min(it.capacity / max(it.used, 1), 1.0)
        while count < len(sizes) - 1 and sum(sizes[count:]) > target:
            count += 1
        return count
