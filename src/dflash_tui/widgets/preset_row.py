"""The presets by name, on a row or as many as they need."""

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

from dflash_tui.text.bars import fit
from dflash_tui.widgets import choices
from dflash_tui.widgets.knob_row import LABEL, LEFT
from dflash_tui.widgets.panels import Row


class PresetRow(Row, Widget, can_focus=True):
    """The presets by name; the one that the parameters are at, if any, in brackets."""

    ALLOW_SELECT = False
    HELP = "← and → take another preset, whole; so does a click on its name."
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1)", "Preset", key_display="← →"),
        Binding("right,space,enter", "move(1)", "next", show=False),
        Binding("up", "go(-1)", "up", show=False),
        Binding("down", "go(1)", "down", show=False),
    ]

    names: reactive[tuple[str, ...]] = reactive[tuple[str, ...]]((), layout=True)
    chosen: reactive[str] = reactive("")

    @dataclass
    class Chosen(Message):
        """The user asked for the preset `name`."""

        name: str

    def action_move(self, count: int) -> None:
        if self.names:
            place = self.names.index(self.chosen) + count if self.chosen in self.names else 0
            self.post_message(self.Chosen(self.names[place % len(self.names)]))

    def on_click(self, event: Click) -> None:
        place = choices.clicked(self.names, self._place, LEFT, self, event)
        if place is not None:
            self.post_message(self.Chosen(self.names[place]))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return choices.height(self.names, LEFT, width)

    @property
    def _place(self) -> int | None:
        return self.names.index(self.chosen) if self.chosen in self.names else None

    def render(self) -> Content:
        mark = "▸" if self.has_focus else " "
        words = choices.drawn(self.names, self._place, LEFT, self.size.width)
        return Content.assemble((mark, "$accent"), " ", fit("preset", LABEL), " ", *words)
