"""The conversation: turns from top to bottom, following the newest line until the user scrolls."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.events import Click
from textual.geometry import Region
from textual.reactive import reactive
from textual.widget import Widget

from dflash_core.clean import clean, one_line
from dflash_core.knobs import Knobs
from dflash_tui.application.amounts import ago, counted
from dflash_tui.application.mentions import collapse
from dflash_tui.application.pasted import clipped
from dflash_tui.settings.keys import retold
from dflash_tui.text.bars import clip
from dflash_tui.widgets.fold import FoldedText
from dflash_tui.widgets.literal import Caption, Static
from dflash_tui.widgets.marks import begins_before
from dflash_tui.widgets.mixins import Blank, Stack

if TYPE_CHECKING:
    from dflash_tui.application.conversations.store import Card
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

    async def take_back(self, turn: TurnBlock) -> None:
        """As `take_away`, and nothing comes in its place: what is empty then is an empty conversation."""
        await self.take_away(turn)
        self.start.display = not self.turns and not self.earlier.texts

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


WHAT = (
    "A drafter is a small model that writes a few words ahead. The large model checks them all in one go and keeps "
    "those that it would have written itself: the same answer, in fewer steps."
)
EXAMPLES = (
    "What is speculative decoding?",
    "Tell me a story about a fox.",
    "Write a Python function that reverses a list.",
)
WIDTH = 64


class Example(Widget):
    """A prompt to try; `chosen` while it is in the prompt."""

    ALLOW_SELECT = False
    chosen: reactive[bool] = reactive(False)

    def __init__(self, text: str) -> None:
        super().__init__(classes="example")
        self.text = text

    def render(self) -> Content:
        mark, style = ("▸", "bold") if self.chosen else ("›", "")
        return Content.assemble((f"{mark} ", "$accent"), (clip(self.text, WIDTH - 2), style))

    async def on_click(self, event: Click) -> None:
        event.stop()
        await self.run_action(f"screen.example({self.text!r})")


class Last(Caption):
    """The conversation that changed last; a click goes on with it."""

    async def on_click(self, event: Click) -> None:
        event.stop()
        await self.run_action("screen.continue")


class StartPage(Vertical):
    """Hidden after the first message, and shown again with an empty conversation."""

    def __init__(self) -> None:
        super().__init__(id="welcome")
        self._examples = [Example(text) for text in EXAMPLES]
        self._shown = ("", False, False, True)
        self.offers_tour = False

    def compose(self) -> ComposeResult:
        with Vertical(id="start"):
            about = ("  a chat that drafts ahead", "$foreground 80%")
            yield Static(Content.assemble(("dflash", "bold $primary"), about))
            yield Static(WHAT, id="start-what", classes="start-part")
            yield Last("", id="start-last", classes="start-part")
            how = ("   Tab puts it into the prompt, Enter sends it", "$foreground 70%")
            yield Static(Content.assemble(("Try one", "bold"), how), classes="start-part")
            yield from self._examples
            yield Static("", id="start-model", classes="start-part")
            yield Static("", id="start-hints", classes="start-part")

    def on_mount(self) -> None:
        self.offer(None)
        self.show("", loading=True)

    @property
    def examples(self) -> Sequence[str]:
        return EXAMPLES if self.display else ()

    def offer(self, card: Card | None) -> None:
        """Offer to go on with this conversation, the last one; None where there is none."""
        last = self.query_one(Last)
        self.query_one("#start-what").display, last.display = card is None, card is not None
        if card is not None:
            keys = retold("Alt+L goes on with it, Ctrl+O lists all", self.app)
            last.update(_part("Last", one_line(card.title), f"{ago(card.updated, time.time())}; {keys}"))

    def mark(self, prompt: str) -> None:
        for one in self._examples:
            one.chosen = one.text == prompt

    def show(self, model: str, *, loading: bool, tunes: bool = True) -> None:
        """The model that is loaded, "" for none. `tunes`: it can be measured here."""
        state = (model, loading, self.offers_tour, tunes)
        if state == self._shown:
            return
        self._shown = state
        self.query_one("#start-model", Static).update(_model(one_line(model), loading=loading))
        hint, style = "F8 finds the best setting   " * tunes + "? explains figures   /tour", "$foreground 70%"
        if self.offers_tour:
            hint, style = "New here? Enter begins a tour of six steps. Or just type.", "$accent"
        self.query_one("#start-hints", Static).update(Content.styled(retold(hint, self.app), style))


def _model(title: str, *, loading: bool) -> Content:
    if title.startswith("demo pair"):
        return _part("Model", title, "small, to look around with; /models has real ones")
    if title:
        return _part("Model", title, "/models opens another")
    if loading:
        waits = ("   is being loaded; what you send waits for it\n", "$foreground 70%")
        return Content.assemble(("Model", "bold"), waits)
    return _part("Model", "none is loaded", "/models lists what is here, /get fetches one")


def _part(name: str, what: str, hint: str) -> Content:
    """A name, what has it, and below that a hint."""
    return Content.assemble((f"{name:<8}", "bold"), clip(what, WIDTH - 8), (f"\n        {hint}", "$foreground 70%"))
