"""The parameters of the next turn, made from the one table in `dflash_core.knobs`."""

from __future__ import annotations

from collections.abc import Sequence

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.events import DescendantFocus

from dflash_core.knobs import CONTEXT, SPECS, Group, Knobs, Spec, Value
from dflash_core.text.reasoning import Reasoning
from dflash_tui.widgets.knob_row import ChoiceRow, KnobRow, ThinkingRow
from dflash_tui.widgets.literal import Static
from dflash_tui.widgets.more_row import MoreRow
from dflash_tui.widgets.panel import Panel
from dflash_tui.widgets.preset_row import PresetRow
from dflash_tui.widgets.slider import Slider

BEHIND = {"reasoning_effort"}  # parameters without a row of their own: the row of thinking has the levels
GROUPS: tuple[Group, ...] = ("speculation", "sampling", "answer")
FIRST = ("budget", "p_min", "temperature", "thinking")  # what people turn first; the others are behind a line


class ParamsPanel(Panel):
    """One row per parameter. `•` marks what the next turn will change."""

    TITLE = "Next turn"

    def __init__(self, knobs: Knobs) -> None:
        super().__init__("params")
        self._knobs = knobs
        self._used = knobs
        self._running = False
        self._rows = {spec.name: _row(spec, getattr(knobs, spec.name)) for spec in SPECS if spec.name not in BEHIND}
        self._rows[CONTEXT.name] = Slider(CONTEXT)
        self._others = Vertical(id="params-others")
        self._others.display = False
        self._more = MoreRow(len(self._rows) - len(FIRST))

    def compose(self) -> ComposeResult:
        yield Static(self._heading(), id="params-heading", classes="heading")
        with VerticalScroll(id="params-rows", can_focus=False):
            yield PresetRow(id="presets")
            yield from (self._rows[name] for name in FIRST)
            yield self._more
            with self._others:
                for group in GROUPS:
                    specs = [spec for spec in SPECS if spec.group == group and spec.name not in {*FIRST, *BEHIND}]
                    yield _heading(group, f"from the {specs[0].applies}")
                    yield from (self._rows[spec.name] for spec in specs)
                yield _heading("loading", "with /reload")
                yield self._rows[CONTEXT.name]
        yield Static("", id="params-help")

    def show(self, knobs: Knobs, used: Knobs, *, running: bool) -> None:
        """Set the rows to `knobs`; what differs from `used`, the knobs of the last or `running` turn, is marked."""
        self._knobs, self._used, self._running = knobs, used, running
        for name, row in self._rows.items():
            if isinstance(row, ThinkingRow):
                row.show(knobs)
                row.staged = row.reasoning.level(knobs) != row.reasoning.level(used)
            elif name != CONTEXT.name:
                row.value = getattr(knobs, name)
                row.staged = row.value != getattr(used, name)
        self._more.staged = sum(row.staged for name, row in self._rows.items() if name not in FIRST)
        self.query_one("#params-heading", Static).update(self._heading())

    def show_reasoning(self, reasoning: Reasoning) -> None:
        """What the loaded model's template can be asked for."""
        thinking = self.row("thinking")
        assert isinstance(thinking, ThinkingRow)
        thinking.reasoning = reasoning
        self.row("preserve_thinking").display = reasoning.preserves
        self.show(self._knobs, self._used, running=self._running)

    def on_mount(self) -> None:
        self.row("preserve_thinking").display = False

    def show_context(self, wanted: int, loaded: int) -> None:
        """The context that the next load asks for, marked where it is not the present one's."""
        row = self.row(CONTEXT.name)
        row.value, row.staged = wanted, wanted != loaded

    def show_presets(self, names: Sequence[str], chosen: str) -> None:
        """The presets there are, and the one that the parameters are at; empty where they are at none."""
        row = self.query_one(PresetRow)
        row.names, row.chosen = tuple(names), chosen

    def row(self, name: str) -> KnobRow:
        """The row of one parameter."""
        return self._rows[name]

    def enter(self) -> None:
        """Focus the tree budget."""
        self.row("budget").focus()

    def unfold(self, is_open: bool) -> None:
        """Show or hide the parameters that are not among the first."""
        self._others.display = self._more.open = is_open

    @on(MoreRow.Toggled)
    def _toggled(self) -> None:
        self.unfold(not self._more.open)

    def reach(self, name: str) -> KnobRow:
        """The row of a parameter, with the others unfolded where it is among those."""
        if name not in FIRST:
            self.unfold(True)
        return self.row(name)

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        if isinstance(event.widget, KnobRow):
            spec = event.widget.spec
            text = f"{spec.help}; {spec.allowed}, default {spec.show(spec.default)}; {_when(spec)}"
            self.query_one("#params-help", Static).update(Content(text))

    def _heading(self) -> Content:
        staged = sum(a != b for a, b in zip(self._knobs.to_dict().values(), self._used.to_dict().values(), strict=True))
        since = "; a applies now" if self._running else ""
        note = f"  • {staged} changed{since}" if staged else ""
        return Content.assemble((self.TITLE, "bold"), (note, "$accent"))


def _heading(group: str, when: str) -> Static:
    return Static(Content.assemble(group, (f"  {when}", "$foreground 70%")), classes="group")


def _row(spec: Spec, value: Value) -> KnobRow:
    if spec.name == "thinking":
        return ThinkingRow(spec, value)
    return Slider(spec, value) if spec.kind in ("int", "float") else ChoiceRow(spec, value)


def _when(spec: Spec) -> str:
    return "with /reload" if spec.applies == "reload" else f"from the {spec.applies}"
