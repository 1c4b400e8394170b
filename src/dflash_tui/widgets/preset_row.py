"""The presets by name, on a row or as many as they need."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Click
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

from dflash_tui.text.bars import fit
from dflash_tui.widgets.knob_row import LABEL, LEFT
from dflash_tui.widgets.panel import Row


class PresetRow(Row, Widget, can_focus=True):
    """The presets by name; the one that the parameters are at, if any, in brackets."""

    ALLOW_SELECT = False
    HELP = "Left and right take another preset, whole; so does a click on its name."
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1)", "Preset", key_display="← →"),
        Binding("right,space,enter", "move(1)", "next", show=False),
        Binding("up", "go(-1)", "up", show=False),
        Binding("down", "go(1)", "down", show=False),
    ]

    names: reactive[tuple[str, ...]] = reactive[tuple[str, ...]]((), layout=True)
    chosen: reactive[str] = reactive("")

    class Chosen(Message):
        """The user asked for the preset `name`."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    def action_move(self, count: int) -> None:
        if self.names:
            place = self.names.index(self.chosen) + count if self.chosen in self.names else 0
            self.post_message(self.Chosen(self.names[place % len(self.names)]))

    def on_click(self, event: Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None:
            return
        for name, line, start in self._places(self.size.width):
            if line == offset.y and start <= offset.x < start + len(name) + 2:
                self.post_message(self.Chosen(name))

    def _places(self, width: int) -> list[tuple[str, int, int]]:
        """Each name with the line and the cell that it begins at; as many lines as they need."""
        places: list[tuple[str, int, int]] = []
        line, at = 0, LEFT
        for name in self.names:
            if at > LEFT and at + len(name) + 2 > width:
                line, at = line + 1, LEFT
            places.append((name, line, at))
            at += len(name) + 2
        return places

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return max((line for _, line, _ in self._places(width)), default=0) + 1

    def render(self) -> Content:
        mark = "▸" if self.has_focus else " "
        parts: list[str | tuple[str, str]] = [(mark, "$accent"), " ", fit("preset", LABEL), " "]
        last = 0
        for name, line, _ in self._places(self.size.width):
            if line > last:
                parts.append("\n" + " " * LEFT)
                last = line
            parts.append((f"‹{name}›", "bold $primary") if name == self.chosen else (f" {name} ", "$foreground 70%"))
        return Content.assemble(*parts)

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()
