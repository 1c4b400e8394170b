"""The page of an empty conversation: what the app is, three prompts to try, the model, and hints. Where there is an
earlier conversation, how to go on with it instead of what the app is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.events import Click
from textual.reactive import reactive
from textual.widget import Widget

from dflash_core.clean import one_line
from dflash_tui.application.amounts import ago
from dflash_tui.settings.keys import retold
from dflash_tui.text.bars import clip
from dflash_tui.widgets.literal import Caption, Static

if TYPE_CHECKING:
    from dflash_tui.application.conversations.store import Card

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
