"""Fetch a pair: what the hub says of it first, then a question, then progress. Nothing comes before the answer."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen

from dflash_core.clean import one_line
from dflash_core.errors import DFlashError
from dflash_core.memory import gib
from dflash_tui.chat.fetching import Fetching
from dflash_tui.chat.host import ChatHost
from dflash_tui.hub.catalogue import Pair
from dflash_tui.hub.fetch import fetched
from dflash_tui.hub.places import downloads
from dflash_tui.hub.room import by_size
from dflash_tui.text.bars import bar, seconds
from dflash_tui.text.glossary import figure
from dflash_tui.widgets.literal import Static
from dflash_tui.widgets.model_rows import at_home

LOOK_S = 0.1
WIDTH = 60
DIM = "$foreground 75%"


class GetScreen(ModalScreen[bool]):
    """Enter fetches, and loads what was fetched; Esc ends it and says what is kept, then leaves. True: it loads."""

    BINDINGS: ClassVar[list[BindingType]] = [("enter", "go", "Fetch"), ("escape", "back", "Back")]

    def __init__(self, chat: ChatHost, pair: Pair, fetching: type[Fetching] = Fetching) -> None:
        super().__init__()
        self._chat, self._pair, self._make = chat, pair, fetching
        self._fetching = fetching(pair, downloads())
        self._fits = ""
        self._left = False  # Esc has ended it

    def compose(self) -> ComposeResult:
        with Vertical(id="get", classes="dialog"):
            yield Static(Content.styled(f"Get {self._pair.name}", "bold"))
            yield Static("", id="get-body")
            yield Static("", id="get-keys")

    def on_mount(self) -> None:
        self._fetching.start()
        self.set_interval(LOOK_S, self._look)
        self._look()

    def on_unmount(self) -> None:
        self._fetching.stop()

    def _look(self) -> None:
        self.query_one("#get-body", Static).update(self._body())
        self.query_one("#get-keys", Static).update(_keys(self._actions()))

    def _actions(self) -> list[tuple[str, str]]:
        """What the keys do now."""
        it = self._fetching
        if it.fetched:
            return [("Enter", "loads it"), ("Esc", "back")]
        if it.over:
            return [("Enter", "tries again"), ("Esc", "back")]
        if it.started:
            return [("Esc", "ends it, keeps what is here")]
        return [*([("Enter", "fetches it")] if it.ready else []), ("Esc", "back")]

    def _body(self) -> Content:
        it, pair = self._fetching, self._pair
        parts: list[str | tuple[str, str]] = [f"{pair.about}\n"]
        parts += [("licence  ", DIM), f"{pair.licence or 'not stated; see the repository'}\n"]
        if not it.files:
            sources = [source for source in (pair.target, pair.draft) if source is not None]
            parts += [(f"{source.repo}\n", DIM) for source in sources]
        for one in it.files:
            parts += [(f"{gib(one.size):>9}  ", ""), (f"{one.where}\n", DIM)]
        if it.files:
            self._fits = self._fits or by_size(it.size)
            fits = "$success" if self._fits.startswith("fits") else "$error"
            parts += [
                (f"{gib(it.size):>9}  ", "bold"),
                (f"in all, into {at_home(it.folder)}\n", DIM),
                (f"{self._fits}\n", fits),
            ]
        return Content.assemble(*parts, "\n", *self._state()).stylize(figure("fetch"))

    def _state(self) -> list[str | tuple[str, str]]:
        """How far it is."""
        it = self._fetching
        if it.over and it.error is not None and not self._left:
            error = it.error
            said = str(error) if isinstance(error, DFlashError) else f"{type(error).__name__}: {error}"
            return [(one_line(said), "$error"), *([f"\n{it.kept}"] if it.started else []), "\n"]
        if self._left:
            return [f"ended; {it.kept}\n" if it.over else "ending…\n"]
        if it.fetched:
            return [("here, and checked\n", "bold $success")]
        if not it.files:
            return [("asking the hub for its size…\n", DIM)]
        done = it.done / max(it.size, 1)
        if not it.started:
            return [f"{gib(it.done)} of it is here already\n" if it.done else ("nothing of it is here yet\n", DIM)]
        left = f", {seconds(it.left_s)} left" if it.left_s is not None else ""
        speed = f", {gib(round(it.speed))}/s{left}" if it.speed else ""
        return [
            (bar(done, WIDTH), "$primary on $panel"),
            f"\n{gib(it.done)} of {gib(it.size)}{speed}\n",
            (f"{it.said}\n", DIM),
        ]

    def action_go(self) -> None:
        """Fetch it; load it where it is here; ask again where that failed."""
        it = self._fetching
        if it.fetched:
            self.dismiss(True)
            self._chat.program.change_model(*fetched(self._pair, it.folder))
        elif it.over:
            begun = it.started
            self._fetching, self._left = self._make(self._pair, it.folder), False
            self._fetching.start()
            if begun:
                self._fetching.go()
        elif it.ready:
            it.go()
        self._look()

    def action_back(self) -> None:
        """Esc: end the fetching and say what is kept; then leave."""
        it = self._fetching
        if it.started and not it.over:
            self._left = True
            it.stop()
            self._look()
        else:
            self.dismiss(False)


def _keys(pairs: list[tuple[str, str]]) -> Content:
    parts: list[str | tuple[str, str]] = []
    for key, what in pairs:
        parts += [(key, "bold $accent"), f" {what}   "]
    return Content.assemble(*parts)
