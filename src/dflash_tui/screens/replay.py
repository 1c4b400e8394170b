"""The chat screen over a trace: the recorded messages send themselves."""

from __future__ import annotations

from dflash_tui.replay import NO_MODEL, ReplaySession
from dflash_tui.screens.chat import ChatScreen
from dflash_tui.widgets.transcript import TurnBlock


class ReplayScreen(ChatScreen):
    """Each turn begins when the one before it is shown, with the knobs that it had."""

    def on_mount(self) -> None:
        super().on_mount()
        self.prompt.placeholder = "A replay, without a model: Ctrl+R plays the last turn again, Alt+I shows its steps"

    async def loaded(self) -> None:
        await super().loaded()
        await self._next_turn()

    async def _next_turn(self) -> None:
        record = self.session.conversation.next if isinstance(self.session, ReplaySession) else None
        if record is not None:
            self.knobs = record.knobs
            await self.sending.ask(await self.transcript.add_turn(record.start.prompt))

    def action_reload(self) -> None:
        self.say(NO_MODEL)

    def turn_ended(self, block: TurnBlock, *, refused: bool) -> None:
        super().turn_ended(block, refused=refused)
        self.call_next(self._next_turn)
