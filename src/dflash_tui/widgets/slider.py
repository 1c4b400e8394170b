"""Rows with a track to click and drag on: sliders of parameters, one of them that of drafting; the steps of a turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Blur, Key, MouseDown, MouseMove, MouseScrollDown, MouseScrollUp, MouseUp
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

from dflash_core.drafting import CAPPED, DEFAULT_NODES, kind_of, nodes_of
from dflash_core.errors import KnobError
from dflash_core.knobs import Value
from dflash_tui.text.bars import spark
from dflash_tui.widgets.knob_row import LEFT, KnobRow

VALUE = 8  # cells for the number at the right


class Dragged(Widget):
    """A widget with a track, on which a click or a drag goes to a place."""

    _dragging = False

    @property
    def track(self) -> tuple[int, int]:
        """Its first cell, and the one after its last."""
        raise NotImplementedError

    def drag(self, x: int) -> None:
        """The pointer is at column `x`, maybe beyond the track."""
        raise NotImplementedError

    def on_mouse_down(self, event: MouseDown) -> None:
        offset = event.get_content_offset(self)
        if event.button == 1 and offset is not None and self.track[0] <= offset.x < self.track[1]:
            self._dragging = True
            self.capture_mouse()
            self.drag(offset.x)
        event.stop()

    def on_mouse_move(self, event: MouseMove) -> None:
        if self._dragging:
            self.drag(event.x)
            event.stop()

    def on_mouse_up(self, event: MouseUp) -> None:
        if self._dragging:
            self._dragging = False
            self.release_mouse()
            event.stop()


class Slider(KnobRow, Dragged):
    """An int or float `Spec` as `label ━━━●──── value`."""

    HELP = (
        "← and → move by one step, with Shift by ten; Home and End go to the ends; "
        "digits and Enter set a value, Backspace the default. Wheel, click and drag work too. "
        "While an answer is written, a lets it go on with what was changed."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("shift+left", "step(-10)", "less ×10", show=False),
        Binding("shift+right", "step(10)", "more ×10", show=False),
        Binding("home", "end(0)", "least", show=False),
        Binding("end", "end(1)", "most", show=False),
    ]

    _typed = ""

    @property
    def ends(self) -> tuple[float, float]:
        """What the track spans; typed values may go beyond, up to what the parameter allows."""
        return self.spec.slider or (self.spec.minimum, self.spec.maximum)

    @property
    def number(self) -> float:
        return float(self.value)

    @property
    def track(self) -> tuple[int, int]:
        return LEFT, max(self.size.width - VALUE - 1, LEFT + 4)

    def action_step(self, count: int) -> None:
        (low, high), present = self.ends, self.number
        # A typed value beyond the track stays where it is and does not jump back.
        self._move_to(present + count * self.spec.step, min(low, present), max(high, present))

    def action_end(self, which: int) -> None:
        self.change(self._typed_as(self.ends[which]))

    def check_consume_key(self, key: str, character: str | None) -> bool:
        return character is not None and (character.isdigit() or character in "-.")

    def on_key(self, event: Key) -> None:
        if self.check_consume_key(event.key, event.character):
            self._typed += event.character or ""
        elif self._typed and event.key == "backspace":
            self._typed = self._typed[:-1]
        elif self._typed and event.key == "enter":
            self._take_typed()
        elif self._typed and event.key == "escape":
            self._typed = ""
        else:
            return
        event.stop()
        event.prevent_default()
        self.refresh()

    def on_blur(self, event: Blur) -> None:
        if self._typed:
            self._take_typed()

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        self._wheel(event, 1)

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        self._wheel(event, -1)

    def _wheel(self, event: MouseScrollUp | MouseScrollDown, count: int) -> None:
        # Only the row in use: the wheel scrolls the panel when it passes over the others.
        if self.has_focus:
            event.stop()
            event.prevent_default()
            self.action_step(count)

    def drag(self, x: int) -> None:
        (low, high), (start, end) = self.ends, self.track
        self._move_to(low + (x - start) / max(end - start - 1, 1) * (high - low), low, high)

    def _move_to(self, number: float, low: float, high: float) -> None:
        """Change to the nearest whole number of steps from zero, where steps are counted, from `low` to `high`."""
        step = self.spec.step
        self.change(self._typed_as(min(max(round(number / step) * step if step else number, low), high)))

    @property
    def _prefix(self) -> str:
        """What stands before the number in a value."""
        return ""

    def _typed_as(self, number: float) -> Value:
        return round(number) if self.spec.kind == "int" else round(number, 6)

    def _take_typed(self) -> None:
        typed, self._typed = self._typed, ""
        try:
            self.change(self.spec.parse(self._prefix + typed))
        except KnobError as error:
            self.post_message(self.Refused(str(error)))

    def render(self) -> Content:
        return Content.assemble(self.label(), *self.drawn(self.spec.show(self.value), VALUE))

    def drawn(self, value: str, width: int) -> list[tuple[str, str]]:
        """The track, and at its right the value, or what is being typed instead, in `width` cells."""
        (low, high), (start, end) = self.ends, self.track
        at = round(min(max((self.number - low) / (high - low), 0.0), 1.0) * (end - start - 1))
        value = f"{self._typed}_" if self._typed else value
        return [
            ("━" * at, "$primary"),
            ("●", "bold $accent" if self.has_focus else "bold $primary"),
            ("─" * (end - start - 1 - at), "$foreground 30%"),
            (value[-width:].rjust(width), "bold reverse" if self._typed else "bold"),
        ]


KINDS = ("auto", CAPPED, "tree", "chain", "plain")
SIZE = 4  # cells for the size at the right


class DraftingRow(Slider):
    """`drafting` as `label ‹tree› ━━●── 22`, or as `label ‹auto›`."""

    HELP = (
        "Space takes the next kind: auto, auto up to N, a tree or a chain of N, plain. ← and → change N, with Shift by "
        "ten, and the kind where it has no N; digits and Enter set N, Backspace the default. "
        "While an answer is written, a lets it go on with what was changed."
    )
    BINDINGS: ClassVar[list[BindingType]] = [Binding("space", "kind(1)", "Kind")]

    @property
    def kind(self) -> str:
        return kind_of(str(self.value))

    @property
    def number(self) -> float:
        return nodes_of(str(self.value)) or DEFAULT_NODES

    @property
    def track(self) -> tuple[int, int]:
        start = LEFT + len(self.kind) + 3
        return start, max(self.size.width - SIZE, start + 2)

    def action_kind(self, count: int) -> None:
        kind = KINDS[(KINDS.index(self.kind) + count) % len(KINDS)]
        self.change(kind if kind in ("auto", "plain") else f"{kind} {self.number:.0f}")

    def action_step(self, count: int) -> None:
        if self._has_size:
            super().action_step(count)
        else:
            self.action_kind(1 if count > 0 else -1)

    def step_size(self, count: int) -> None:
        """Change the size; a kind without one becomes a tree."""
        super().action_step(count)

    @property
    def _has_size(self) -> bool:
        return nodes_of(str(self.value)) is not None

    @property
    def _prefix(self) -> str:
        return f"{self.kind if self._has_size else 'tree'} "

    def _typed_as(self, number: float) -> Value:
        return f"{self._prefix}{number:.0f}"

    def render(self) -> Content:
        kind = (f"‹{self.kind}› ", "bold")
        if not self._has_size and not self._typed:
            return Content.assemble(self.label(), kind)
        return Content.assemble(self.label(), kind, *self.drawn(f"{self.number:.0f}", SIZE))


class Scrubber(Dragged, can_focus=True):
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

    @property
    def track(self) -> tuple[int, int]:
        return len(self._label), len(self._label) + self._columns

    def drag(self, x: int) -> None:
        column = x - len(self._label)
        if 0 <= column < self._columns:
            self.go(-(-column * len(self.lengths) // self._columns) + 1)

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
