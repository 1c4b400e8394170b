"""The row of what decodes: a kind, and for kinds with a size a slider for it."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content

from dflash_core.drafting import CAPPED, DEFAULT_NODES, kind_of, nodes_of
from dflash_core.knobs import Value
from dflash_tui.widgets.knob_row import LEFT
from dflash_tui.widgets.slider import Slider

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
        """Take a kind further on; its size stays."""
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

    def _typed_as(self, number: float) -> Value:
        return f"{self.kind if self._has_size else 'tree'} {number:.0f}"

    def _parsed(self, typed: str) -> Value:
        return self.spec.parse(f"{self.kind if self._has_size else 'tree'} {typed}")

    def render(self) -> Content:
        kind = (f"‹{self.kind}› ", "bold")
        if not self._has_size and not self._typed:
            return Content.assemble(self.label(), kind)
        return Content.assemble(self.label(), kind, *self.drawn(f"{self.number:.0f}", SIZE))
