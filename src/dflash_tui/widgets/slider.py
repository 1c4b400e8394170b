"""Sliders on one row: keys, typed numbers, wheel, click and drag. One of them is the row of drafting."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Blur, Key, MouseDown, MouseMove, MouseScrollDown, MouseScrollUp, MouseUp

from dflash_core.drafting import CAPPED, DEFAULT_NODES, kind_of, nodes_of
from dflash_core.errors import KnobError
from dflash_core.knobs import Value
from dflash_tui.widgets.knob_row import LEFT, KnobRow

VALUE = 8  # cells for the number at the right


class Slider(KnobRow):
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
    _dragging = False

    @property
    def ends(self) -> tuple[float, float]:
        """What the track spans; typed values may go beyond, up to what the parameter allows."""
        return self.spec.slider or (self.spec.minimum, self.spec.maximum)

    @property
    def number(self) -> float:
        return float(self.value)

    @property
    def start(self) -> int:
        return LEFT

    @property
    def track(self) -> int:
        return max(self.size.width - LEFT - VALUE - 1, 4)

    def action_step(self, count: int) -> None:
        (low, high), present = self.ends, self.number
        # A typed value beyond the track stays where it is rather than jump the wrong way.
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

    async def on_mouse_down(self, event: MouseDown) -> None:
        offset = event.get_content_offset(self)
        if event.button == 1 and offset is not None and self.start <= offset.x < self.start + self.track:
            self._dragging = True
            self.capture_mouse()
            self._place(offset.x)
        event.stop()

    def on_mouse_move(self, event: MouseMove) -> None:
        if self._dragging:
            self._place(event.x)
            event.stop()

    def on_mouse_up(self, event: MouseUp) -> None:
        if self._dragging:
            self._dragging = False
            self.release_mouse()
            event.stop()

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

    def _place(self, x: int) -> None:
        low, high = self.ends
        self._move_to(low + (x - self.start) / max(self.track - 1, 1) * (high - low), low, high)

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
        low, high = self.ends
        at = round(min(max((self.number - low) / (high - low), 0.0), 1.0) * (self.track - 1))
        value = f"{self._typed}_" if self._typed else value
        return [
            ("━" * at, "$primary"),
            ("●", "bold $accent" if self.has_focus else "bold $primary"),
            ("─" * (self.track - 1 - at), "$foreground 30%"),
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
    def start(self) -> int:
        return LEFT + len(self.kind) + 3

    @property
    def track(self) -> int:
        return max(self.size.width - self.start - SIZE, 2)

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
