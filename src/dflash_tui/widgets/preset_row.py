"""The presets on one row."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Click
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

from dflash_tui.widgets.bars import fit
from dflash_tui.widgets.knob_row import LABEL, LEFT


class PresetRow(Widget, can_focus=True):
    """The presets by name; the one that the parameters are at, if any, in brackets."""

    ALLOW_SELECT = False
    HELP = "Left and right take another preset, whole; so does a click on its name."
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1)", "previous", show=False),
        Binding("right,space,enter", "move(1)", "next", show=False),
        Binding("up", "app.focus_previous", "up", show=False),
        Binding("down", "app.focus_next", "down", show=False),
    ]

    names: reactive[tuple[str, ...]] = reactive[tuple[str, ...]](())
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
        for name, start, end in self._places():
            if start <= offset.x < end:
                self.post_message(self.Chosen(name))

    def _places(self) -> list[tuple[str, int, int]]:
        """Each name that fits, and its cells. The chosen one always does: names before it go first."""
        names = list(self.names)
        room = max(self.size.width - LEFT, 8)
        while self.chosen in names[1:] and sum(len(n) + 2 for n in names[: names.index(self.chosen) + 1]) > room:
            del names[0]
        places, at = [], LEFT
        for name in names:
            if at + len(name) + 2 > LEFT + room:
                break
            places.append((name, at, at + len(name) + 2))
            at += len(name) + 2
        return places

    def render(self) -> Content:
        mark = "▸" if self.has_focus else " "
        parts: list[str | tuple[str, str]] = [(mark, "$accent"), " ", fit("preset", LABEL), " "]
        for name, _, _ in self._places():
            parts.append((f"‹{name}›", "bold $primary") if name == self.chosen else (f" {name} ", "$foreground 70%"))
        return Content.assemble(*parts)

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()
