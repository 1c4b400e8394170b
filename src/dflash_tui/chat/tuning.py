"""Changing parameters: checked against the loaded pair, staged for the next turn or taken over by the running one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash_core.errors import KnobError
from dflash_core.knobs import LIVE, SPEC, Value
from dflash_tui.settings.presets import Presets

if TYPE_CHECKING:
    from dflash_tui.screens.chat import ChatScreen


class Tuning:
    """What the chat screen does with parameters. `knobs` of the screen are the next turn's, `used` the last one's."""

    def __init__(self, screen: ChatScreen, presets: Presets) -> None:
        self._screen = screen
        self.presets = presets
        self.context = self._loaded_context = 0

    def set(self, changes: dict[str, Value]) -> None:
        """Stage changes. Raises KnobError where a value, or its combination with the loaded pair, is impossible."""
        screen = self._screen
        knobs = screen.knobs.replace(**changes)
        if screen.session is not None:
            screen.session.limits.check(knobs, changes)
        screen.knobs = knobs
        screen.show_knobs()

    def when(self, name: str) -> str:
        """When a staged change of `name` takes effect, in words."""
        if self._screen.flow.busy and name in LIVE:
            return "from the next turn; /apply takes it over now"
        return "from the next turn"

    def apply(self) -> None:
        """Hand the staged changes to the answer that is being written; what it cannot take waits for the next turn."""
        screen = self._screen
        staged = [name for name in SPEC if getattr(screen.knobs, name) != getattr(screen.used, name)]
        live = [name for name in staged if name in LIVE]
        if not screen.flow.busy:
            screen.say("nothing is being written: the next turn takes every change by itself")
        elif not staged:
            screen.say("no parameter has been changed since this turn began")
        elif not live:
            screen.say(f"{', '.join(staged)}: from the next turn only")
        else:
            screen.flow.change(screen.knobs)
            screen.used = screen.used.in_mid_turn(screen.knobs)
            screen.show_knobs()
            late = [name for name in staged if name not in LIVE]
            rest = f"; {', '.join(late)} from the next turn" if late else ""
            values = ", ".join(f"{name} {SPEC[name].show(getattr(screen.knobs, name))}" for name in live)
            screen.say(f"from the next step: {values}{rest}")

    def use(self, name: str) -> None:
        """Stage a preset. Raises DFlashError where there is none of that name, or the loaded pair cannot follow it."""
        preset = self.presets[name]
        self.set(dict(preset.knobs.to_dict()))
        self._screen.say(f"preset {preset.name} from the next turn" + (f": {preset.about}" if preset.about else ""))

    def cycle(self) -> None:
        """The preset after the present one, passing over those that the loaded pair cannot follow."""
        name = self.presets.like(self._screen.knobs)
        for _ in self.presets.names:
            name = self.presets.after(name).name
            try:
                self.use(name)
            except KnobError:
                continue
            return

    def save(self, name: str) -> None:
        """Keep the staged parameters as a preset. Raises PresetError."""
        path = self.presets.save(name, self._screen.knobs)
        self._screen.show_knobs()
        self._screen.say(f"preset {name} is kept in {path}")

    def loaded(self) -> None:
        """A model has been loaded, with the context that was staged for it."""
        self._loaded_context = self.context
        self._screen.inspector.params_panel.show_context(self.context, self._loaded_context)
        screen = self._screen
        if screen.session is not None and screen.knobs.tree_width > (most := screen.session.limits.tree_width):
            screen.knobs = screen.knobs.replace(tree_width=most)
            screen.show_knobs()
            screen.say(f"tree_width is {most} from the next turn: what the card keeps per draft position")

    def ask_for_context(self, positions: int) -> None:
        """Stage another context for the next load."""
        self.context = positions
        self._screen.inspector.params_panel.show_context(positions, self._loaded_context)
        self._screen.say(f"context {positions or 'as fits'}: /reload loads the model again with it")

    def tell_problems(self) -> None:
        """Say once what is wrong with preset files."""
        if self.presets.problems:
            text = "\n".join(self.presets.problems)
            self._screen.notify(text, title="Presets", severity="warning", timeout=10)
            self.presets.problems.clear()
