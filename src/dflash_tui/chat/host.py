"""The interface of the chat to slash commands and to the screens that open over it."""

from __future__ import annotations

from typing import ClassVar, Protocol

from dflash_tui.chat.background_plain import BackgroundPlain
from dflash_tui.chat.context import ContextKeeper
from dflash_tui.chat.conversation import ConversationController
from dflash_tui.chat.desk import Desk
from dflash_tui.chat.downloads import Downloads
from dflash_tui.chat.gauges import Gauges
from dflash_tui.chat.layout import Layout
from dflash_tui.chat.profiles import ProfileKeeper
from dflash_tui.chat.program import ProgramController
from dflash_tui.chat.sending import Sending
from dflash_tui.chat.tuning import Tuning


def no_pair(desk: Desk) -> str:
    """Why there is no model to measure or to ask."""
    return "the model is still being loaded; try again when it is ready" if desk.loading_now else "no model is loaded"


class ChatHost(Desk, Protocol):
    """A desk with the parts that act on it."""

    REFUSED: ClassVar[frozenset[str]]
    """Ids of actions, and names of commands, that have no effect here."""

    @property
    def conversation(self) -> ConversationController: ...
    @property
    def gauges(self) -> Gauges: ...
    @property
    def program(self) -> ProgramController: ...
    @property
    def profiles(self) -> ProfileKeeper: ...
    @property
    def sending(self) -> Sending: ...
    @property
    def tuning(self) -> Tuning: ...
    @property
    def downloads(self) -> Downloads: ...
    @property
    def plain(self) -> BackgroundPlain: ...
    @property
    def places(self) -> Layout: ...
    @property
    def context(self) -> ContextKeeper: ...
    def open_page(self, page: str, text: str = "") -> None:
        """Open a screen over the chat; `text`: what a lab screen runs at once."""
        ...

    def tour_seen(self) -> None:
        """The user has seen it: do not offer it again."""
        ...

    async def action_clear(self) -> None: ...
    async def action_version(self, by: int) -> None: ...
