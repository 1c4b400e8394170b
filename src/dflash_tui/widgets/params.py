"""The parameters of the next turn, made from the one table in `dflash_core.knobs`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.events import DescendantFocus
from textual.message import Message
from textual.widget import Widget

from dflash_core.arch.recommended import NOTHING, SAMPLING, Recommended
from dflash_core.knobs import CONTEXT, SPEC, SPECS, Applies, Group, Knobs, Spec, Value
from dflash_core.text.reasoning import Reasoning
from dflash_tui.widgets.knob_row import ChoiceRow, KnobRow, PresetRow, ThinkingRow
from dflash_tui.widgets.literal import Static
from dflash_tui.widgets.more_row import MoreRow
from dflash_tui.widgets.panels import Panel
from dflash_tui.widgets.slider import DraftingRow, Slider

ROWLESS = {"reasoning_effort"}  # parameters without a row of their own: the row of thinking has the levels
GROUPS: tuple[Group, ...] = ("speculation", "sampling", "answer")
FIRST = ("drafting", "p_min", "temperature", "thinking")  # the most used ones; the others unfold from a line
WHEN: dict[Applies, str] = {
    "next step": "from the next turn; a: now",
    "next turn": "from the next turn",
    "reload": "with /reload",
}
"""When a change takes effect. It is the same for all parameters of a group, so the heading says it once."""


class ParamsPanel(Panel):
    """One row per parameter. `•` marks what the next turn will change."""

    TITLE = "Next turn"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("m", "more", "More")]

    @dataclass
    class Folded(Message):
        """The user has shown the other parameters, or hidden them."""

        open: bool

    def __init__(self, knobs: Knobs) -> None:
        super().__init__("params")
        self._knobs = knobs
        self._used = knobs
        self._running = False
        self._recommended = NOTHING
        self._taken: frozenset[str] | None = None
        self._rows = {spec.name: _row(spec, getattr(knobs, spec.name)) for spec in SPECS if spec.name not in ROWLESS}
        self._rows[CONTEXT.name] = Slider(CONTEXT)
        self._headings: dict[str, Static] = {}
        self._others = Vertical(id="params-others")
        self._others.display = False
        self._more = MoreRow(len(self._rows) - len(FIRST))

    def compose(self) -> ComposeResult:
        yield Static(self._heading(), id="params-heading", classes="heading")
        untaken = Static("", id="params-untaken")
        untaken.display = False
        yield untaken
        with VerticalScroll(id="params-rows", can_focus=False):
            yield PresetRow(id="presets")
            yield from (self._rows[name] for name in FIRST)
            yield self._more
            yield self._others
        yield Static("", id="params-help")

    def complete(self) -> None:
        """Add the rows of the other parameters. They are many, and the first frame does not need them."""
        if not self._others.is_attached:
            return  # the app ends
        rows: list[Widget] = []
        for group in GROUPS:
            specs = [spec for spec in SPECS if spec.group == group and spec.name not in {*FIRST, *ROWLESS}]
            self._headings[group] = _heading(group, specs[0].applies)
            rows += [self._headings[group], *(self._rows[spec.name] for spec in specs)]
        self._headings["loading"] = _heading("loading", CONTEXT.applies)
        self._others.mount(*rows, self._headings["loading"], self._rows[CONTEXT.name])

    def show_defaults(self, recommended: Recommended) -> None:
        """Set the defaults of sampling: those of the loaded model."""
        self._recommended = recommended
        self.show(self._knobs, self._used, running=self._running)

    def show(self, knobs: Knobs, used: Knobs, *, running: bool) -> None:
        """Set the rows to `knobs`; what differs from `used`, the knobs of the last or `running` turn, is marked."""
        self._knobs, self._used, self._running = knobs, used, running
        for name, default in self._recommended.defaults(knobs.thinking).items():
            self._rows[name].spec = replace(self._rows[name].spec, default=default)
        for name, row in self._rows.items():
            if isinstance(row, ThinkingRow):
                row.show(knobs)
                row.staged = row.reasoning.level(knobs) != row.reasoning.level(used)
            elif name != CONTEXT.name:
                row.value = getattr(knobs, name)
                row.staged = row.value != getattr(used, name)
        others = [row for name, row in self._shown() if name not in {*FIRST, CONTEXT.name}]
        self._more.staged = sum(row.staged for row in others)
        self._more.set_ones = tuple(row.spec.name for row in others if not row.at_default)
        self.query_one("#params-heading", Static).update(self._heading())

    def show_reasoning(self, reasoning: Reasoning) -> None:
        """Set the thinking options that the loaded model's template supports."""
        thinking = self.row("thinking")
        assert isinstance(thinking, ThinkingRow)
        thinking.reasoning = reasoning
        self.row("preserve_thinking").display = reasoning.preserves
        self.show(self._knobs, self._used, running=self._running)

    def show_taken(self, engine: str, taken: frozenset[str] | None) -> None:
        """Show the parameters that another engine takes, and a sentence about the others; None: all, for none."""
        if (taken, self._taken) == (None, None):
            return
        self._taken = taken
        for name, row in self._rows.items():
            if name != "preserve_thinking":
                row.display = taken is None or name in taken
        self._more.count = sum(name not in FIRST for name, _ in self._shown())
        for group, heading in self._headings.items():
            heading.display = taken is None or any(SPEC[name].group == group for name in taken)
        note = self.query_one("#params-untaken", Static)
        note.display = taken is not None
        note.update(f"{engine} takes these; drafting and the rest are set where it runs")

    def _shown(self) -> list[tuple[str, KnobRow]]:
        return [(name, row) for name, row in self._rows.items() if self._taken is None or name in self._taken]

    def show_most_nodes(self, most: int) -> None:
        """Let the size of drafting end at `most`."""
        spec = SPEC["drafting"]
        low, high = spec.slider or (spec.minimum, spec.maximum)
        self.row("drafting").spec = replace(spec, maximum=min(spec.maximum, most), slider=(low, min(high, most)))

    def on_mount(self) -> None:
        self.row("preserve_thinking").display = False

    def show_context(self, requested: int, loaded: int) -> None:
        """Show the context of the next load, marked if it differs from the current one."""
        row = self.row(CONTEXT.name)
        row.value, row.staged = requested, requested != loaded

    def show_presets(self, names: Sequence[str], chosen: str) -> None:
        """The presets there are, and the one that the parameters are at; empty where they are at none."""
        row = self.query_one(PresetRow)
        row.names, row.chosen = tuple(names), chosen

    def row(self, name: str) -> KnobRow:
        return self._rows[name]

    def enter(self) -> None:
        next(row for name in FIRST if (row := self.row(name)).display).focus()

    def unfold(self, is_open: bool) -> None:
        """Show or hide the parameters that are not among the first."""
        self._others.display = self._more.open = is_open

    @on(MoreRow.Toggled)
    def action_more(self) -> None:
        if self._more.open and self._others in (self.screen.focused.ancestors if self.screen.focused else ()):
            self._more.focus()  # the focused row is being hidden
        self.unfold(not self._more.open)
        self.post_message(self.Folded(self._more.open))

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        if isinstance(event.widget, KnobRow):
            spec = event.widget.spec
            by = f", {self._recommended.by}" if spec.name in SAMPLING and self._recommended.source else ""
            text = f"{spec.help}; {spec.allowed}, default {spec.show(spec.default)}{by}. ? says more"
            self.query_one("#params-help", Static).update(Content(text))

    def on_descendant_blur(self) -> None:
        """Show the help of the focused row."""
        if not self.is_attached:  # the app ends, and with it the focus
            return
        focused = self.screen.focused
        if focused is None or self not in focused.ancestors:
            for help in self.query("#params-help").results(Static):
                help.update("")

    def _heading(self) -> Content:
        staged = sum(a != b for a, b in zip(self._knobs.to_dict().values(), self._used.to_dict().values(), strict=True))
        since = "; a applies now" if self._running else ""
        note = f"  • {staged} changed{since}" if staged else ""
        return Content.assemble((self.TITLE, "bold"), (note, "$accent"))


def _heading(group: str, applies: Applies) -> Static:
    shown = Content.assemble((group, "bold"), (f"  {WHEN[applies]}", "$foreground 70%"))
    return Static(shown, classes="group")


def _row(spec: Spec, value: Value) -> KnobRow:
    if spec.name == "thinking":
        return ThinkingRow(spec, value)
    if spec.kind == "drafting":
        return DraftingRow(spec, value)
    return Slider(spec, value) if spec.kind in ("int", "float") else ChoiceRow(spec, value)
