"""The conversation: turns from top to bottom, following the newest line until the user scrolls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.geometry import Region
from textual.widget import Widget

from dflash_core.clean import clean
from dflash_core.knobs import Knobs
from dflash_tui.application.amounts import counted
from dflash_tui.application.mentions import collapse
from dflash_tui.application.pasted import clipped
from dflash_tui.widgets.fold import FoldedText
from dflash_tui.widgets.literal import Caption, Static
from dflash_tui.widgets.marks import begins_before
from dflash_tui.widgets.mixins import Blank, Stack
from dflash_tui.widgets.start import StartPage

if TYPE_CHECKING:
    from dflash_tui.application.conversations.tool_messages import ToolResult
    from dflash_tui.widgets.answer import Answer

Block = TypeVar("Block", bound="TurnBlock")
SHOWN = 20  # the newest turns, which keep their widgets


class TurnBlock(Stack, Vertical):
    """A user message and the answers that were given to it."""

    def __init__(self, prompt: str) -> None:
        super().__init__(classes="turn")
        self.prompt = prompt  # as it is sent
        self.typed, self._files = collapse(prompt)
        self.node = ""  # the message's id in the conversation, once it is stored
        self.instead_of: str | None = None  # of the message that this is a new version of
        self.entered = False  # the conversation holds the message, so a retry need not ask it again
        self.answers: list[Answer] = []

    def compose(self) -> ComposeResult:
        yield from self.message()
        yield Caption("", classes="queued")

    def message(self) -> ComposeResult:
        with Horizontal(classes="user"):
            yield Caption("❯ ", classes="user-mark")
            beside = "$foreground 80% not bold"
            files = [(f"\n▫ {line}", beside) for line in self._files]
            head, left_out, tail = clipped(self.typed)
            parts = (clean(head), (left_out, beside), clean(tail))
            yield Static(Content.assemble(*parts, *files), classes="user-text")
            yield Caption("", classes="user-place")

    @property
    def question(self) -> str | Sequence[ToolResult]:
        return self.prompt

    @property
    def message_text(self) -> str:
        return "> " + "\n".join((self.typed, *self._files)).replace("\n", "\n> ")

    @property
    def over(self) -> bool:
        """The message has been answered, and no answer is being written."""
        return bool(self.answers) and all(answer.over for answer in self.answers)

    def as_text(self) -> str:
        parts = [self.message_text]
        for answer in self.answers:
            parts += [text.strip("\n") for text in (answer.thinking.text, answer.text) if text.strip()]
        return "\n\n".join(parts)

    def queued(self, why: str) -> None:
        """Say why the message waits; an empty text takes the line away."""
        line = self.query_one(".queued", Caption)
        line.update(Content.styled(why, "$foreground 70%"))
        line.set_class(bool(why), "-shown")

    def place(self, number: int, count: int) -> None:
        """Which of its versions the message is: shown as ‹2/3› once there are several."""
        for place in self.query(".user-place").results(Caption):
            place.update(f" ‹{number}/{count}›" if count > 1 else "")

    async def add_answer(self, knobs: Knobs, node: str = "") -> Answer:
        """Begin an answer, or show that of the id `node`; earlier ones fold into a line each."""
        from dflash_tui.widgets.answer import Answer

        answer = Answer(knobs, node)
        self.answers.append(answer)
        await self.mount(answer)
        self.choose(answer)
        return answer

    def choose(self, answer: Answer) -> None:
        """Open one of the answers; the others fold into a line each."""
        for number, one in enumerate(self.answers, 1):
            one.place(number, len(self.answers))
            one.fold(one is not answer)


class Earlier(FoldedText):
    """Old turns, as plain text under one line, because every key and resize costs time for what is laid out."""

    def __init__(self) -> None:
        super().__init__(id="earlier", body="")
        self.display = False
        self.texts: list[str] = []

    def show(self) -> None:
        """Bring line and text up to date."""
        self.line.title = counted(len(self.texts), "earlier turn")
        self.display = bool(self.texts)
        self.toggled(self.line.open)

    @property
    def folded_text(self) -> str:
        return clean("\n\n".join(self.texts))


class Transcript(Blank, VerticalScroll):
    """Every turn of the conversation."""

    HELP = "↑, ↓, PgUp and PgDn scroll; End follows the newest line again. n (or Enter) and N go along what was found."
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "screen.found(1)", "Next"),
        Binding("N", "screen.found(-1)", "Previous"),
        Binding("enter", "screen.found(1)", "Next", show=False),
    ]

    def __init__(self) -> None:
        super().__init__(id="transcript")
        self.turns: list[TurnBlock] = []
        self.earlier = Earlier()
        self.start = StartPage()

    def compose(self) -> ComposeResult:
        yield self.start
        yield self.earlier

    def on_mount(self) -> None:
        self.anchor()

    @property
    def answer(self) -> Answer | None:
        return next((turn.answers[-1] for turn in reversed(self.turns) if turn.answers), None)

    def toggle_thinking(self) -> bool:
        """Open or close the thinking of the newest answer; False where it has none."""
        answer = self.answer
        if answer is None or not answer.thinking.text:
            return False
        answer.thinking.line.action_fold()
        return True

    def page(self, where: str) -> None:
        """Scroll a page "up" or "down", or to the end and follow it again."""
        if where == "up":
            self.scroll_page_up()
        elif where == "down":
            self.scroll_page_down()
        else:
            self.anchor()

    def look_at(self, widget: Widget) -> None:
        """Bring `widget` into view. If it is fully visible, do not scroll: without its anchor it would move up."""
        if self.max_scroll_y > 0:
            self.release_anchor()
            widget.scroll_visible(animate=False, top=True)

    def look_at_line(self, widget: Widget, line: int, column: int) -> None:
        """Bring a place of a widget's text into view, with a line above and below it."""
        if self.max_scroll_y <= 0:
            return
        self.release_anchor()
        drawn = widget.render_lines(Region(0, 0, *widget.outer_size))
        row = max((y for y, strip in enumerate(drawn) if begins_before(strip, line, column)), default=0)
        top = widget.region.y - self.region.y + int(self.scroll_y) + row
        self.scroll_to_region(Region(0, top - 1, 1, 3), animate=False, force=True, immediate=True)

    async def add(self, turn: Block, after: TurnBlock | None = None) -> Block:
        """A new turn, at the end or `after` another one, before queued messages."""
        self.start.display = False
        await self.mount(turn, after=after)
        # Not earlier: a retry would find it before it can take an answer.
        self.turns.insert(self.turns.index(after) + 1 if after in self.turns else len(self.turns), turn)
        self.anchor()
        return turn

    def past(self, texts: list[str]) -> None:
        self.start.display = False
        self.earlier.texts += texts
        self.earlier.show()

    async def take_away(self, turn: TurnBlock) -> None:
        self.turns.remove(turn)
        await turn.remove()

    async def prune(self, coming: int = 0) -> None:
        """Turn the oldest of many turns into text. Not those that an edited message hides: they may be shown again.
        `coming`: how many more follow at once."""
        shown = [turn for turn in self.turns if turn.display]
        for turn in shown[: max(len(shown) + coming - SHOWN, 0)]:
            if not turn.over:
                break
            self.turns.remove(turn)
            self.earlier.texts.append(turn.as_text())
            await turn.remove()
        self.earlier.show()

    async def clear(self) -> None:
        self.turns.clear()
        self.earlier.line.open = False
        self.earlier.texts.clear()
        self.earlier.show()
        await self.remove_children(".turn, .note")
        self.start.display = True
