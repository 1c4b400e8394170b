"""The steps of a turn on one row: each is a column whose height shows the tokens that it committed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import MouseDown, MouseMove, MouseUp
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

from dflash_tui.text.bars import spark


class Scrubber(Widget, can_focus=True):
    """Shows `lengths` with the column of `step`, which counts from 1, in reverse. Posts `Moved`."""

    ALLOW_SELECT = False
    HELP = "← and → go by one step, with Shift by ten; Home and End to the ends; click and drag work too."
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1)", "Step", show=True, key_display="← →"),
        Binding("right", "move(1)", "next step", show=False),
        Binding("shift+left", "move(-10)", "ten before", show=False),
        Binding("shift+right", "move(10)", "ten on", show=False),
        Binding("home", "move(-1000000)", "first", show=False),
        Binding("end", "move(1000000)", "last", show=False),
    ]

    lengths: reactive[tuple[int, ...]] = reactive[tuple[int, ...]](())
    step: reactive[int] = reactive(0)

    @dataclass
    class Moved(Message):
        """The user went to `step`."""

        step: int

    def __init__(self) -> None:
        super().__init__(id="scrubber")
        self._dragging = False

    def hint(self, action: str, label: str) -> str:
        return label if self.lengths else ""

    def action_move(self, count: int) -> None:
        self.go(self.step + count)

    def go(self, step: int) -> None:
        step = min(max(step, 1), len(self.lengths))
        if step and step != self.step:
            self.post_message(self.Moved(step))

    @property
    def _label(self) -> str:
        total = str(len(self.lengths))
        return f" step {self.step:>{len(total)}}/{total} "

    @property
    def _columns(self) -> int:
        return max(min(len(self.lengths), self.size.width - len(self._label) - 1), 0)

    def _place(self, x: int) -> None:
        column = x - len(self._label)
        if 0 <= column < self._columns:
            self.go(-(-column * len(self.lengths) // self._columns) + 1)

    def on_mouse_down(self, event: MouseDown) -> None:
        self._dragging = True
        self.capture_mouse()
        self._place(event.x)

    def on_mouse_move(self, event: MouseMove) -> None:
        if self._dragging:
            self._place(event.x)

    def on_mouse_up(self, event: MouseUp) -> None:
        self._dragging = False
        self.release_mouse()

    def render(self) -> Content:
        columns = self._columns
        if not columns:
            return Content.styled(" no step", "$foreground 70%")
        row = spark([float(length) for length in self.lengths], columns)[0]
        at = (self.step - 1) * columns // len(self.lengths)
        label = "bold $accent" if self.has_focus else "bold"
        return Content.assemble(
            (self._label, label), (row[:at], "$success"), (row[at], "reverse bold"), (row[at + 1 :], "$success")
        )
