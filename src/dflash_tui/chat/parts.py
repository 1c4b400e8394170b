"""The controllers of one chat. Commands and pages get them all; none of them knows another that is made after it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from dflash_tui.application.mentions import Offer
from dflash_tui.chat.background_plain import BackgroundPlain
from dflash_tui.chat.branching import Copying
from dflash_tui.chat.controller import Controller
from dflash_tui.chat.conversation import ConversationController
from dflash_tui.chat.downloads import Downloads
from dflash_tui.chat.gauges import Gauges
from dflash_tui.chat.layout import ChatLayout
from dflash_tui.chat.profiles import ProfileKeeper
from dflash_tui.chat.program import ProgramController
from dflash_tui.chat.sending import Sending, Typed
from dflash_tui.chat.serving import Serving
from dflash_tui.chat.tools import ToolCalls
from dflash_tui.chat.tuning import Tuning


@dataclass(eq=False)
class ChatParts(Controller):
    gauges: Gauges
    tuning: Tuning
    places: ChatLayout
    open_page: Callable[..., None]  # opens a page by its name; with a text, a lab page runs that at once
    complete: Callable[[str, ChatParts], list[Offer]]  # the completions of a slash command
    run: Callable[[str, ChatParts], Awaitable[None]]  # runs one

    def __post_init__(self) -> None:
        state, screen, gauges, tuning = self.state, self.screen, self.gauges, self.tuning
        self.downloads = Downloads(state, screen)
        self.plain = BackgroundPlain(state, screen, gauges)
        self.conversation = ConversationController(state, screen, gauges, tuning)
        self.tools = ToolCalls(state, screen)
        self.sending = Sending(state, screen, gauges, tuning, self.plain, self.conversation, self.tools)
        self.program = ProgramController(state, screen, gauges, tuning, self.plain, self.conversation, self.sending)
        self.profiles = ProfileKeeper(state, screen, self.program)
        self.serving = Serving(state, screen, gauges)
        self.copying = Copying(state, screen, self.conversation.branching)
        self.typed = Typed(state, screen, gauges, lambda text: self.complete(text, self))

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

    def tour_seen(self) -> None:
        self.state.remembered.put("tour seen", True)
        self.transcript.start.offers_tour = False
        self.gauges.start()
