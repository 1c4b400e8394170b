"""The parameters of the next turn, made from the one table in `dflash_core.knobs`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.events import Click, DescendantFocus
from textual.message import Message
from textual.reactive import reactive

from dflash_core.arch.recommended import NOTHING, SAMPLING
from dflash_core.knobs import CONTEXT, SPEC, SPECS, Applies, Group, Knobs, Spec, Value
from dflash_core.limits import Limits
from dflash_core.text.reasoning import Reasoning
from dflash_tui.widgets.knob_row import ChoiceRow, KnobRow, PresetRow, ThinkingRow
from dflash_tui.widgets.literal import Static
from dflash_tui.widgets.panels import Panel, Row
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


class MoreRow(Row):
    """Enter, Space, an arrow or a click shows or hides the rows of its panel. While these are hidden, it names those
    that are not at their default, `set_ones`."""

    HELP = "Enter, Space, m or a click shows the other parameters, or hides them again."
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,space", "turn", "More"),
        Binding("right", "turn(True)", "show", show=False),
        Binding("left", "turn(False)", "hide", show=False),
    ]

    open: reactive[bool] = reactive(False)
    staged: reactive[int] = reactive(0)
    set_ones: reactive[tuple[str, ...]] = reactive[tuple[str, ...]](())
    count: reactive[int] = reactive(0)

    def action_turn(self, unfolded: bool | None = None) -> None:
        if unfolded is not self.open:
            self.query_ancestor(ParamsPanel).action_more()

    def on_click(self, event: Click) -> None:
        event.stop()
        self.action_turn()

    def render(self) -> Content:
        style = "bold underline" if self.has_focus else "$foreground 80%"
        if self.open:
            return Content.assemble((" ▼ ", "$accent"), ("fewer parameters", style))
        what, staged = f"{self.count} more parameters", f"  •{self.staged}" if self.staged else ""
        names = f"  set: {', '.join(self.set_ones)}" if self.set_ones else ""
        if len(names) > self.size.width - len(what) - len(staged) - 3:  # the mark
            names = f"  {len(self.set_ones)} set"
        return Content.assemble((" ▶ ", "$accent"), (what, style), (names, "bold"), (staged, "$accent"))


class ParamsPanel(Panel):
    """One row per parameter. `•` marks what the next turn will change."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("m", "more", "More")]

    @dataclass
    class Folded(Message):
        """The user has shown the other parameters, or hidden them."""

        open: bool

    def __init__(self, knobs: Knobs) -> None:
        super().__init__("params")
        self._recommended = NOTHING
        self._rows = {spec.name: _row(spec, getattr(knobs, spec.name)) for spec in SPECS if spec.name not in ROWLESS}
        self._rows[CONTEXT.name] = Slider(CONTEXT)
        rest = [row for name, row in self._rows.items() if name not in FIRST]
        self._folded = {group: [row for row in rest if row.spec.group == group] for group in (*GROUPS, CONTEXT.group)}
        self._headings = {group: _heading(group, rows[0].spec.applies) for group, rows in self._folded.items()}
        self._others = Vertical(id="params-others")
        self._others.display = False
        self._first_frame = True
        self._more = MoreRow(id="params-more")

    def compose(self) -> ComposeResult:
        yield Static("", id="params-heading", classes="heading")
        yield Static("", id="params-untaken")
        with VerticalScroll(id="params-rows", can_focus=False):
            yield PresetRow(id="presets")
            yield from (self._rows[name] for name in FIRST)
            yield self._more
            yield self._others
        yield Static("", id="params-help")

    def show(self, knobs: Knobs, used: Knobs, limits: Limits, context: tuple[int, int], *, running: bool) -> None:
        """Set the rows to `knobs`; what differs from `used`, the knobs of the last or `running` turn, is marked.
        `limits`: of the loaded model. `context`: of the next load, and the present one."""
        self._recommended, taken = limits.recommended, limits.taken
        reasoning = limits.reasoning or Reasoning()
        for name, default in self._recommended.defaults(knobs.thinking).items():
            self._rows[name].spec = replace(self._rows[name].spec, default=default)
        size = SPEC["drafting"]
        low, high = size.slider or (size.minimum, size.maximum)
        most = min(size.maximum, limits.budget)
        self._rows["drafting"].spec = replace(size, maximum=most, slider=(low, min(high, most)))
        for name, row in self._rows.items():
            if isinstance(row, ThinkingRow):
                row.reasoning = reasoning
                row.show(knobs)
                row.staged = reasoning.level(knobs) != reasoning.level(used)
            elif name == CONTEXT.name:
                row.value, row.staged = context[0], context[0] != context[1]
            else:
                row.value = getattr(knobs, name)
                row.staged = row.value != getattr(used, name)
            row.display = reasoning.preserves if name == "preserve_thinking" else taken is None or name in taken
        rest = [row for name, row in self._rows.items() if name not in FIRST and (taken is None or name in taken)]
        others = [row for row in rest if row.spec is not CONTEXT]
        self._more.count, self._more.staged = len(rest), sum(row.staged for row in others)
        self._more.set_ones = tuple(row.spec.name for row in others if not row.at_default)
        for group, heading in self._headings.items():
            heading.display = taken is None or any(SPEC[name].group == group for name in taken)
        staged = sum(a != b for a, b in zip(knobs.to_dict().values(), used.to_dict().values(), strict=True))
        note = f"  • {staged} changed" + "; a applies now" * running if staged else ""
        self.query_one("#params-heading", Static).update(Content.assemble(("Next turn", "bold"), (note, "$accent")))
        untaken = self.query_one("#params-untaken", Static)
        untaken.display = taken is not None
        untaken.update(f"{limits.engine} takes these; drafting and the rest are set where it runs")

    def show_presets(self, names: Sequence[str], chosen: str) -> None:
        row = self.query_one(PresetRow)
        row.words, row.chosen = tuple(names), chosen

    def row(self, name: str) -> KnobRow:
        return self._rows[name]

    def enter(self) -> None:
        next(row for name in FIRST if (row := self.row(name)).display).focus()

    def after_first_frame(self) -> None:
        self._first_frame = False
        self.unfold(self._more.open)

    def unfold(self, is_open: bool) -> None:
        """Show or hide the other parameters. Their rows are many: most of the chat's widgets. They are added when they
        are first shown, but not before the first frame."""
        self._others.display = self._more.open = is_open
        if is_open and not self._first_frame and not self._others.children and self._others.is_attached:
            for group, rows in self._folded.items():
                self._others.mount(self._headings[group], *rows)

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
        """No row is focused any more: no help."""
        if not self.is_attached:  # the app ends, and with it the focus
            return
        focused = self.screen.focused
        if focused is None or self not in focused.ancestors:
            for help in self.query("#params-help").results(Static):
                help.update("")


def _heading(group: Group, applies: Applies) -> Static:
    return Static(Content.assemble((group, "bold"), (f"  {WHEN[applies]}", "$foreground 70%")), classes="group")


def _row(spec: Spec, value: Value) -> KnobRow:
    if spec.name == "thinking":
        return ThinkingRow(spec, value)
    if spec.kind == "drafting":
        return DraftingRow(spec, value)
    return Slider(spec, value) if spec.kind in ("int", "float") else ChoiceRow(spec, value)
