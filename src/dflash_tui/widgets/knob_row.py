"""One parameter on one row: what sliders, switches and choices share. Many choices take more lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Click
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

from dflash_core.knobs import Knobs, Spec, Value
from dflash_core.text.reasoning import Reasoning
from dflash_tui.text.bars import fit
from dflash_tui.widgets import choices
from dflash_tui.widgets.panels import Row

LABEL = 18
LEFT = LABEL + 3  # focus mark, staged mark, label, a space


class KnobRow(Row, Widget, can_focus=True):
    """A focusable row for one `Spec`. Posts `Changed` when the user changes the value, never when the app sets it.

    Each kind of row brings its own `action_step`, which the arrow keys call.
    """

    ALLOW_SELECT = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "step(-1)", "Change", key_display="← →"),
        Binding("right", "step(1)", "more", show=False),
        Binding("backspace", "reset", "Default", key_display="Backspace"),
        Binding("a", "screen.apply", "apply now", show=False),
        Binding("up", "go(-1)", "up", show=False),
        Binding("down", "go(1)", "down", show=False),
    ]

    value: reactive[Value] = reactive[Value](0)
    staged: reactive[bool] = reactive(False)

    @dataclass
    class Changed(Message):
        """The user set `name` to `value`, which is legal."""

        name: str
        value: Value

    @dataclass
    class Refused(Message):
        """The user typed an illegal value; `reason` says what is allowed."""

        reason: str

    def __init__(self, spec: Spec, value: Value | None = None) -> None:
        super().__init__(id=f"knob-{spec.name}")
        self.spec = spec
        self.set_reactive(KnobRow.value, spec.default if value is None else value)

    def change(self, value: Value) -> None:
        """Set a legal value from the user and tell the app."""
        if value != self.value:
            self.value = value
            self.post_message(self.Changed(self.spec.name, value))

    def action_step(self, count: int) -> None:
        """Move the value by `count` of the parameter's steps."""
        raise NotImplementedError

    def action_reset(self) -> None:
        self.change(self.spec.default)

    @property
    def at_default(self) -> bool:
        return self.value == self.spec.default

    def hint(self, action: str, label: str) -> str:
        return "" if action == "reset" and self.at_default else label

    def label(self) -> Content:
        """Focus mark, staged mark and name. Marks, not colors, carry the meaning."""
        mark = "▸" if self.has_focus else " "
        dot = "•" if self.staged else " "
        style = "" if self.at_default else "bold"
        return Content.assemble((mark, "$accent"), (dot, "bold $accent"), (fit(self.spec.label, LABEL), style), " ")


class ChoiceRow(KnobRow):
    """A switch or a choice: every option is shown, the present one in brackets; ←/→, Space, or a click."""

    HELP = (
        "← and → change the choice, Space takes the next one, Backspace the default. "
        "While an answer is written, a lets it go on with what was changed."
    )
    BINDINGS: ClassVar[list[BindingType]] = [Binding("space,enter", "next", "next", show=False)]

    @property
    def options(self) -> tuple[Value, ...]:
        return (True, False) if self.spec.kind == "switch" else self.spec.choices

    def action_step(self, count: int) -> None:
        options = self.options
        place = self._place() + count
        self.change(options[min(max(place, 0), len(options) - 1)])

    def action_next(self) -> None:
        options = self.options
        self.change(options[(self._place() + 1) % len(options)])

    def _place(self) -> int:
        return self.options.index(self.value) if self.value in self.options else 0

    def on_click(self, event: Click) -> None:
        place = choices.clicked(self._words(), self._chosen(), LEFT, self, event)
        if place is not None:
            self.change(self.options[place])

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return choices.height(self._words(), LEFT, width)

    def _words(self) -> list[str]:
        return [self.spec.show(option) for option in self.options]

    def _chosen(self) -> int | None:
        same = [option == self.value and type(option) is type(self.value) for option in self.options]
        return same.index(True) if True in same else None

    def render(self) -> Content:
        return Content.assemble(self.label(), *choices.drawn(self._words(), self._chosen(), LEFT, self.size.width))


class ThinkingRow(ChoiceRow):
    """Thinking on or off; if the model's template knows levels, off or one of them. Posts a `Changed` for each of the
    two parameters that it sets."""

    reasoning: reactive[Reasoning] = reactive(Reasoning(), layout=True)

    @property
    def options(self) -> tuple[Value, ...]:
        return ("off", *self.reasoning.levels) if self.reasoning.levels else (True, False)

    def show(self, knobs: Knobs) -> None:
        """Set the row to `knobs`."""
        self.value = self.reasoning.level(knobs) if self.reasoning.levels else knobs.thinking

    @property
    def at_default(self) -> bool:
        return self.value in (False, "off")

    def change(self, value: Value) -> None:
        if value == self.value:
            return
        self.value = value
        if isinstance(value, bool):
            self.post_message(self.Changed("thinking", value))
            return
        for name, part in self.reasoning.changes(str(value)).items():
            self.post_message(self.Changed(name, part))

    def action_reset(self) -> None:
        self.change(self.options[0] if self.reasoning.levels else False)
