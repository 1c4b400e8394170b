"""The parameters of the next turn, made from the one table in `dflash_core.knobs`."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import DescendantFocus
from textual.widgets import Static

from dflash_core.knobs import SPECS, Knobs
from dflash_tui.widgets.knob_row import ChoiceRow, KnobRow
from dflash_tui.widgets.panel import Panel
from dflash_tui.widgets.slider import Slider

GROUPS = ("speculation", "answer", "sampling")


class ParamsPanel(Panel):
    """One row per parameter. `•` marks what the next turn will change."""

    TITLE = "Next turn"

    def __init__(self, knobs: Knobs) -> None:
        super().__init__("params")
        self._knobs = knobs
        self._used = knobs

    def compose(self) -> ComposeResult:
        yield Static(self._heading(), id="params-heading", classes="heading")
        with VerticalScroll(id="params-rows", can_focus=False):
            for group in GROUPS:
                yield Static(group, classes="group")
                for spec in SPECS:
                    if spec.group == group:
                        row = Slider if spec.kind in ("int", "float") else ChoiceRow
                        yield row(spec, getattr(self._knobs, spec.name))
        yield Static("", id="params-help")

    def show(self, knobs: Knobs, used: Knobs) -> None:
        """Set the rows to `knobs`; what differs from `used`, the last turn's, is marked."""
        self._knobs, self._used = knobs, used
        for row in self.query(KnobRow):
            row.value = getattr(knobs, row.spec.name)
            row.staged = row.value != getattr(used, row.spec.name)
        self.query_one("#params-heading", Static).update(self._heading())

    def enter(self) -> None:
        """Focus the row that was used last, or the tree budget."""
        self.query_one("#knob-budget", KnobRow).focus()

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        if isinstance(event.widget, KnobRow):
            spec = event.widget.spec
            text = f"{spec.help}; {spec.allowed}, default {spec.show(spec.default)}"
            self.query_one("#params-help", Static).update(Content(text))

    def _heading(self) -> Content:
        staged = sum(a != b for a, b in zip(self._knobs.to_dict().values(), self._used.to_dict().values(), strict=True))
        note = f"  • {staged} changed since the last turn" if staged else ""
        return Content.assemble((self.TITLE, "bold"), (note, "$warning"))
