"""The chat screen over a trace: the recorded messages are sent automatically."""

from __future__ import annotations

from textual import on
from textual.actions import parse

from dflash_tui.application.replay import NO_MODEL, ReplaySession
from dflash_tui.chat.controller import PairLoaded, TurnEnded
from dflash_tui.chat.state import AppState
from dflash_tui.screens.chat import ChatScreen
from dflash_tui.settings.keys import actions_without, retold
from dflash_tui.widgets.transcript import TurnBlock

WHAT = "A replay, without a model: Ctrl+R plays again, Alt+I steps, Ctrl+Q leaves"
NEED_A_MODEL = frozenset(
    {"tune", "sweep", "ab", "plain", "past", "models", "get", "full", "prompt", "requests", "tools"}
)
"""Pages that need a model."""
NO_EFFECT = NEED_A_MODEL | {
    "apply", "chats", "clear", "continue", "edit", "import", "kv", "load", "params", "policy", "preset",
    "profile", "reload", "rename", "reset", "serve", "set", "system", "think", "tour",
    "turn.send", "prompt.newline", "prompt.empty", "prompt.editor", "param.preset", "param.budget_less",
    "param.budget_more", "param.think", "param.reload", "view.params", "lab.tune", "lab.sweep", "lab.ab",
    "app.download", "chat.rename",
}  # fmt: skip
"""Commands and actions that change the next turn, a model, or conversations: there are none."""
ACTIONS_WITHOUT = actions_without(NO_EFFECT)


class ReplayScreen(ChatScreen):
    """Each turn begins when the previous one is shown, with its recorded knobs."""

    def __init__(self, state: AppState) -> None:
        state.no_model, state.without = NO_MODEL, NO_EFFECT
        super().__init__(state)

    def on_mount(self) -> None:
        super().on_mount()
        self.prompt.placeholder = retold(WHAT, self.app)
        self.prompt.only_commands = True

    @property
    def about_focused(self) -> str:
        return f"{WHAT}. Enter runs a command." if self.focused is self.prompt else super().about_focused

    @on(PairLoaded)
    @on(TurnEnded)
    async def _next_turn(self) -> None:
        session = self.state.session
        record = session.next if isinstance(session, ReplaySession) else None
        if record is not None:
            self.state.knobs = record.asked
            await self.parts.sending.ask(await self.transcript.add(TurnBlock(record.start.prompt)))
            await self.transcript.prune()

    def hint(self, action: str, label: str) -> str:
        label = super().hint(action, label)
        return "Play again" if action == "retry" and label else label

    def action_panel(self, name: str) -> None:
        if f"panel('{name}')" in ACTIONS_WITHOUT:
            self.say(NO_MODEL)
        else:
            super().action_panel(name)

    def action_clear(self) -> None:
        """Refuse: cleared turns could not be restored without a restart."""
        self.say("the turns of a replay cannot be cleared; Ctrl+Q leaves it")


def _refuse(screen: ReplayScreen, *_: object) -> None:
    screen.say(NO_MODEL)


for _name in {parse(action)[1] for action in ACTIONS_WITHOUT} - {"open", "panel", "clear"}:
    setattr(ReplayScreen, f"action_{_name}", _refuse)  # a key that nothing offers may still be pressed
