"""Fetch a pair: first what the hub says about it, then a question, then progress. Nothing is fetched before the user
agrees. A download that has begun continues after this dialog is closed."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen

from dflash_core.clean import one_line
from dflash_core.memory import gib
from dflash_tui.application.advice import at_home
from dflash_tui.application.fetching import Fetching, about
from dflash_tui.application.hub.catalogue import Pair
from dflash_tui.application.hub.files import fetched
from dflash_tui.application.hub.fitting import by_size
from dflash_tui.chat.downloads import KEY, in_background
from dflash_tui.chat.parts import ChatParts
from dflash_tui.text.bars import bar
from dflash_tui.widgets.dialogs import BACK, KeyHints
from dflash_tui.widgets.flash import Saying
from dflash_tui.widgets.literal import Static

LOOK_S = 0.1
WIDTH = 60
DIM = "$foreground 75%"
BEGUN = ("waiting", "running")


class GetScreen(ModalScreen[bool]):
    """Enter fetches, then loads what was fetched. Esc closes the dialog but does not stop a download; s stops it.

    Returns True if the chat is to be shown, because the pair loads or by the key b.
    """

    SCOPE: ClassVar[str] = "get"
    BINDINGS: ClassVar[list[BindingType]] = [
        ("enter", "go", "Fetch"),
        ("b", "chat", "Chat"),
        ("s", "stop", "Stop"),
        ("escape,ctrl+g", "back", "Back"),
    ]

    def __init__(self, chat: ChatParts, pair: Pair, make: type[Fetching] = Fetching) -> None:
        super().__init__()
        self._chat, self._pair, self._make = chat, pair, make
        chat.screen.app.clear_notifications()  # they may cover this dialog and repeat its message
        self._it = chat.downloads.of(pair.name) or self._new()
        self._fits = ""
        self._refusal = ""  # why the pair cannot be loaded now

    def _new(self) -> Fetching:
        return self._chat.downloads.new(self._pair, self._make)

    def compose(self) -> ComposeResult:
        with Vertical(id="get", classes="dialog"):
            yield Static(Content.styled(f"Get {self._pair.name}", "bold"))
            yield Static("", id="get-body")
            yield KeyHints(id="get-keys")

    def on_mount(self) -> None:
        self._show(self._it)
        self.set_interval(LOOK_S, self._look)
        self._look()

    def on_unmount(self) -> None:
        if self._chat.downloads.watched is self._it:  # otherwise another dialog has opened
            self._chat.downloads.watched = None
        if not self._it.agreed:
            self._it.stop()

    def _show(self, it: Fetching) -> None:
        self._it = self._chat.downloads.watched = it
        if not it.agreed:
            it.start()

    def _look(self) -> None:
        it = self._it
        enter = {"ready": "fetches it", "fetched": "loads it", "stopped": "resumes it", "failed": "tries again"}
        hints = [("Enter", enter[it.state]), BACK] if it.state in enter else [BACK]
        if it.state in BEGUN:
            hints = [("b", "to the chat"), BACK, ("s", "stops it, keeps the received part")]
        self.query_one("#get-body", Static).update(self._body())
        self.query_one(KeyHints).tell(*hints)

    def _body(self) -> Content:
        it, pair = self._it, self._it.pair
        parts: list[str | tuple[str, str]] = [f"{pair.about}\n"] if pair.about else []
        parts += [("licence  ", DIM), f"{pair.licence or 'not stated; see the repository'}\n"]
        if not it.files:
            parts += [(f"{source.repo}\n", DIM) for source in (pair.target, pair.draft) if source is not None]
        for one in it.files:
            parts += [f"{gib(one.size):>9}  ", (f"{one.where}\n", DIM)]
        if it.files:
            self._fits = self._fits or by_size(it.size)
            parts += [(f"{gib(it.size):>9}  ", "bold"), (f"in all, into {one_line(at_home(str(it.folder)))}\n", DIM)]
            parts.append((f"{self._fits}\n", "$success" if self._fits.startswith("fits") else "$error"))
        return Content.assemble(*parts, "\n", *self._state())

    def _state(self) -> list[str | tuple[str, str]]:
        it = self._it
        match it.state:
            case "ready":
                if it.done == it.size:
                    return ["All files are on this machine. They can be loaded after a check.\n"]
                none: tuple[str, str] = ("no part of it is on this machine yet\n", DIM)
                return [f"{gib(it.done)} of it is on this machine already\n" if it.done else none]
            case "running":
                left = f", {about(seconds)}" if (seconds := it.left_s) is not None else ""
                speed = f", {gib(round(it.speed))}/s{left}" if it.speed else ""
                return [
                    (bar(it.done / max(it.size, 1), WIDTH), "$primary on $panel"),
                    f"\n{gib(it.done)} of {gib(it.size)}{speed}\n",
                    (": ".join(filter(None, (it.file, it.note))) + "\n", DIM),
                    ("The download continues when you leave.\n", DIM),
                ]
            case "waiting":
                return [f"{it.words}\n", ("The download begins by itself, even after you leave.\n", DIM)]
            case "failed":
                return [(at_home(it.why), "$error"), *([f"\n{at_home(it.received)}"] if it.agreed else []), "\n"]
            case "fetched":
                return [(f"{it.words}\n", "bold $success"), (f"{self._refusal}\n" if self._refusal else "", "$error")]
        return [(f"{at_home(it.words)}\n", DIM if it.state == "asking" else "")]

    def action_go(self) -> None:
        it, downloads = self._it, self._chat.downloads
        if it.state == "fetched":
            self._refusal = self._chat.program.refusal
            if not self._refusal:
                self._leave(to_chat=True)
                self._chat.program.change_model(*fetched(it.pair, it.folder))
        elif it.state in ("failed", "stopped"):
            self._show(self._new())
            if it.agreed:
                downloads.begin(self._it)
        elif it.state == "ready":
            downloads.begin(it)
        self._look()

    def action_stop(self) -> None:
        if self._it.state in BEGUN:
            self._it.stop()
            self._look()

    def action_chat(self) -> None:
        if self._it.state in BEGUN:
            self._leave(to_chat=True)

    def action_back(self) -> None:
        self._leave(to_chat=False)

    def _leave(self, *, to_chat: bool) -> None:
        it = self._it
        self._chat.downloads.seen(it)
        under = self._chat if to_chat else self.app.screen_stack[-2]
        if isinstance(under, Saying) and it.state in BEGUN:
            under.say(f"{in_background(it.pair.name)}: {KEY} shows it")
        elif isinstance(under, Saying) and it.state == "fetched" and not to_chat:
            under.say(f"{it.pair.name} is on this machine: /models loads it")
        self.dismiss(to_chat)
