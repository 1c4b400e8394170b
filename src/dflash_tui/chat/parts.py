"""The controllers of one chat. Commands and pages get them all; none of them knows another that is made after it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from textual.screen import Screen

from dflash_tui.chat.background_plain import BackgroundPlain
from dflash_tui.chat.branching import Copying
from dflash_tui.chat.context import ContextKeeper
from dflash_tui.chat.controller import Controller
from dflash_tui.chat.conversation import ConversationController
from dflash_tui.chat.downloads import Downloads
from dflash_tui.chat.gauges import Gauges
from dflash_tui.chat.layout import ChatLayout
from dflash_tui.chat.profiles import ProfileKeeper
from dflash_tui.chat.program import ProgramController
from dflash_tui.chat.sending import Sending, Typed
from dflash_tui.chat.serving import Serving
from dflash_tui.chat.state import AppState
from dflash_tui.chat.tools import ToolCalls
from dflash_tui.chat.tuning import Tuning
from dflash_tui.widgets.prompt import Completion


class ChatParts(Controller):
    """`open_page` opens a page by its name; its text is what a lab page runs at once."""

    def __init__(
        self,
        state: AppState,
        screen: Screen[Any],
        gauges: Gauges,
        tuning: Tuning,
        places: ChatLayout,
        open_page: Callable[[str, str], None],
        complete: Callable[[str, ChatParts], list[Completion]],
        run: Callable[[str, ChatParts], Awaitable[None]],
    ) -> None:
        """`complete` gives the completions of a slash command, `run` runs one."""
        super().__init__(state, screen)
        self.run = run
        self.gauges, self.tuning, self.places, self._open_page = gauges, tuning, places, open_page
        self.downloads = Downloads(state, screen)
        self.plain = BackgroundPlain(state, screen, gauges)
        self.conversation = ConversationController(state, screen, gauges, tuning)
        self.tools = ToolCalls(state, screen)
        self.sending = Sending(state, screen, gauges, tuning, self.plain, self.conversation, self.tools)
        self.program = ProgramController(state, screen, gauges, tuning, self.plain, self.conversation, self.sending)
        self.profiles = ProfileKeeper(state, screen, self.program)
        self.context = ContextKeeper(state, screen, gauges, tuning, self.conversation, self.program)
        self.serving = Serving(state, screen, gauges, tuning.presets)
        self.copying = Copying(state, screen, self.conversation.branching)
        self.typed = Typed(state, screen, gauges, lambda text: complete(text, self))

    async def begin(self) -> None:
        await self.conversation.begin()
        self.conversation.files.tell_problems()
        self.tuning.tell_problems()
        self.program.begin()
        self.downloads.take_over()
        await self.tools.begin()

    def stop(self, timeout: float = 0.0) -> None:
        """Stop what runs without the user, and wait at most `timeout` seconds for downloads."""
        self.serving.stop()
        self.tools.close()
        self.plain.stop()
        self.downloads.stop(timeout)

    def open_page(self, page: str, text: str = "") -> None:
        """Open one of the screens of `pages.py` over the chat. A lab screen runs `text` at once."""
        self._open_page(page, text)

    def tour_seen(self) -> None:
        self.state.remembered.put("tour seen", True)
        self.transcript.start.offers_tour = False
        self.gauges.start()
