"""The chat screen over a trace: the recorded messages are sent automatically."""

from __future__ import annotations

from dflash_tui.replay import NO_MODEL, ReplaySession
from dflash_tui.screens.chat import ChatScreen
from dflash_tui.settings.keys import retold
from dflash_tui.widgets.transcript import TurnBlock

WHAT = "A replay, without a model: Ctrl+R plays again, Alt+I steps, Ctrl+Q leaves"
NEED_A_MODEL = frozenset({"tune", "sweep", "ab", "plain", "bench", "models", "get", "full", "prompt"})
"""Pages that need a model."""
NOT_HERE = frozenset({"think", "open('tune')", "open('chats')", "download"})
"""Actions that the footer does not name."""


class ReplayScreen(ChatScreen):
    """Each turn begins when the previous one is shown, with its recorded knobs."""

    REFUSED = NEED_A_MODEL | {
        "turn.send", "prompt.newline", "lab.tune", "app.download", "param.think",
        "apply", "bench", "clear", "edit", "load", "reload", "think",
    }  # fmt: skip

    def on_mount(self) -> None:
        super().on_mount()
        self.prompt.placeholder = retold(WHAT, self.app)
        self.prompt.only_commands = True

    @property
    def about_focused(self) -> str:
        return f"{WHAT}. Enter runs a command." if self.focused is self.prompt else super().about_focused

    @property
    def no_model(self) -> str:
        return NO_MODEL

    async def loaded(self) -> None:
        await super().loaded()
        await self._next_turn()

    async def _next_turn(self) -> None:
        record = self.session.conversation.next if isinstance(self.session, ReplaySession) else None
        if record is not None:
            self.knobs = record.knobs
            await self.sending.ask(await self.transcript.add_turn(record.start.prompt))
            await self.transcript.prune()

    def hint(self, action: str, label: str) -> str:
        label = super().hint(action, label)
        if action in NOT_HERE:
            return ""
        return "Play again" if action == "retry" and label else label

    def open_page(self, page: str, text: str = "") -> None:
        if page in NEED_A_MODEL:
            self.say(NO_MODEL)
        else:
            super().open_page(page, text)

    action_open = open_page

    async def action_clear(self) -> None:
        """Refuse: cleared turns could not be restored without a restart."""
        self.say("a replay keeps its turns; Ctrl+Q leaves it")

    def turn_ended(self, block: TurnBlock, *, refused: bool) -> None:
        super().turn_ended(block, refused=refused)
        self.call_next(self._next_turn)
