"""Parts of the chat screen that its first frame does not need: each is imported and created at its first use."""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from dflash_tui.chat.background_plain import BackgroundPlain
    from dflash_tui.chat.context import ContextKeeper
    from dflash_tui.chat.conversation import ConversationController
    from dflash_tui.chat.copying import Copying
    from dflash_tui.chat.host import ChatHost
    from dflash_tui.chat.loading import PairLoading
    from dflash_tui.chat.profiles import ProfileKeeper
    from dflash_tui.chat.program import ProgramController
    from dflash_tui.chat.sending import Sending
    from dflash_tui.chat.typed import Typed

    class Chat(ChatHost, Protocol):
        """`resumed`: the conversation to begin with. `system`: the system message of new conversations."""

        pair: PairLoading
        resumed: str
        system: str
        _conversation: ConversationController | None


class LateParts:
    """Mixed into the chat screen."""

    _conversation: ConversationController | None = None  # None until its first use; for code that must not create it

    @property
    def conversation(self: Chat) -> ConversationController:
        if self._conversation is None:
            from dflash_tui.application.conversations.current import CurrentConversation
            from dflash_tui.chat.conversation import ConversationController

            current = CurrentConversation(self.past.folder, self.system)
            self._conversation = ConversationController(self, current, self.gauges, self.resumed)
        return self._conversation

    @cached_property
    def context(self: Chat) -> ContextKeeper:
        from dflash_tui.chat.context import ContextKeeper

        return ContextKeeper(self)

    @cached_property
    def plain(self: Chat) -> BackgroundPlain:
        from dflash_tui.chat.background_plain import BackgroundPlain

        return BackgroundPlain(self, self.gauges)

    @cached_property
    def sending(self: Chat) -> Sending:
        from dflash_tui.chat.sending import Sending

        return Sending(self)

    @cached_property
    def program(self: Chat) -> ProgramController:
        from dflash_tui.chat.program import ProgramController

        return ProgramController(self, self.conversation, self.tuning, self.pair, self.plain)

    @cached_property
    def profiles(self: Chat) -> ProfileKeeper:
        from dflash_tui.chat.profiles import ProfileKeeper

        return ProfileKeeper(self, self.program)

    @cached_property
    def copying(self: Chat) -> Copying:
        from dflash_tui.chat.copying import Copying

        return Copying(self, self.conversation.branching, self.program.copy)

    @cached_property
    def typed(self: Chat) -> Typed:
        from dflash_tui.chat.typed import Typed
        from dflash_tui.slash.table import complete

        return Typed(self, self.gauges, partial(complete, host=self))
