"""One parameter on one row: what sliders, switches and choices share. Many choices take more lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.cells import cell_len
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Click
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive

from dflash_core.knobs import Knobs, Spec, Value
from dflash_core.text.reasoning import Reasoning
from dflash_tui.text.bars import fit
from dflash_tui.widgets.panels import Row

LABEL = 18
LEFT = LABEL + 3  # focus mark, staged mark, label, a space


class KnobRow(Row):
    """A focusable row for one `Spec`. Posts `Changed` when the user changes the value, never when the app sets it.

    Each kind of row brings its own `action_step`, which the arrow keys call.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "step(-1)", "Change", key_display="← →"),
        Binding("right", "step(1)", "more", show=False),
        Binding("backspace", "reset", "Default", key_display="Backspace"),
        Binding("a", "screen.apply", "apply now", show=False),
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


@dataclass(frozen=True, slots=True)
class Word:
    """Where a word of a row is drawn: its line, its first cell, and its text with brackets or blanks."""

    line: int
    start: int
    text: str

    @property
    def end(self) -> int:
        return self.start + cell_len(self.text)


class WordRow(Row):
    """Words side by side, one of them chosen, on as many lines as they need. A click takes a word."""

    @property
    def words(self) -> Sequence[str]:
        raise NotImplementedError

    @property
    def place(self) -> int | None:
        """Of the chosen word; None where none is."""
        raise NotImplementedError

    def take(self, place: int) -> None:
        raise NotImplementedError

    def label(self) -> Content:
        raise NotImplementedError

    def placed(self, chosen: int | None, width: int) -> list[Word]:
        """The words in lines of `width` cells, if a word fits at all. Each has a cell on both sides for its brackets,
        unless one blank between words makes them fit on one line."""
        words, line, at = self.words, 0, LEFT
        found: list[Word] = []
        wide = LEFT + sum(cell_len(word) + 2 for word in words)
        close = wide > width >= wide - (len(words) - 1)
        for index, word in enumerate(words):
            text = f"‹{word}›" if index == chosen else word if close else f" {word} "
            if at > LEFT and at + cell_len(text) > width:
                line, at = line + 1, LEFT
            found.append(Word(line, at, text))
            at = found[-1].end + close
        return found

    def on_click(self, event: Click) -> None:
        at = event.get_content_offset(self)
        for place, word in enumerate(self.placed(self.place, self.size.width)):
            if at is not None and word.line == at.y and word.start <= at.x < word.end:
                self.take(place)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return max((word.line for word in self.placed(0, width)), default=0) + 1

    def render(self) -> Content:
        chosen, line, at = self.place, 0, LEFT
        parts: list[Content | str | tuple[str, str]] = [self.label()]
        for place, word in enumerate(self.placed(chosen, self.size.width)):
            if word.line > line:
                parts.append("\n" + " " * LEFT)
                line, at = word.line, LEFT
            parts += [" " * (word.start - at), (word.text, "bold $primary" if place == chosen else "$foreground 70%")]
            at = word.end
        return Content.assemble(*parts)


class PresetRow(WordRow):
    """The presets by name; the one that the parameters are at, if any, in brackets."""

    HELP = "← and → take another preset, whole; so does a click on its name."
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1)", "Preset", key_display="← →"),
        Binding("right,space,enter", "move(1)", "next", show=False),
    ]

    words: reactive[tuple[str, ...]] = reactive[tuple[str, ...]]((), layout=True)
    chosen: reactive[str] = reactive("")

    @dataclass
    class Chosen(Message):
        """The user asked for the preset `name`."""

        name: str

    @property
    def place(self) -> int | None:
        return self.words.index(self.chosen) if self.chosen in self.words else None

    def take(self, place: int) -> None:
        self.post_message(self.Chosen(self.words[place]))

    def action_move(self, count: int) -> None:
        if self.words:
            self.take((self.place + count) % len(self.words) if self.place is not None else 0)

    def label(self) -> Content:
        return Content.assemble(("▸" if self.has_focus else " ", "$accent"), " ", fit("preset", LABEL), " ")


class ChoiceRow(KnobRow, WordRow):
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
        self.take(min(max((self.place or 0) + count, 0), len(self.options) - 1))

    def action_next(self) -> None:
        self.take(((self.place or 0) + 1) % len(self.options))

    def take(self, place: int) -> None:
        self.change(self.options[place])

    @property
    def words(self) -> Sequence[str]:
        return [self.spec.show(option) for option in self.options]

    @property
    def place(self) -> int | None:
        same = [option == self.value and type(option) is type(self.value) for option in self.options]
        return same.index(True) if True in same else None


class ThinkingRow(ChoiceRow):
    """Thinking on or off; if the model's template knows levels, off or one of them. Posts a `Changed` for each of the
    two parameters that it sets."""

    reasoning: reactive[Reasoning] = reactive(Reasoning(), layout=True)

    @property
    def options(self) -> tuple[Value, ...]:
        return ("off", *self.reasoning.levels) if self.reasoning.levels else (True, False)

    def show(self, knobs: Knobs) -> None:
        self.value = self.reasoning.level(knobs) if self.reasoning.levels else knobs.thinking

    @property
    def at_default(self) -> bool:
        return self.value in (False, "off")

    def change(self, value: Value) -> None:
        if value != self.value:
            self.value = value
            changes = {"thinking": value} if isinstance(value, bool) else self.reasoning.changes(str(value))
            for name, part in changes.items():
                self.post_message(self.Changed(name, part))

    def action_reset(self) -> None:
        self.change("off" if self.reasoning.levels else False)
