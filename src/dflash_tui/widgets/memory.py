"""The memory breakdown: the prediction for each component and what the process really uses."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content

from dflash_core.memory import MemoryBreakdown, gib
from dflash_tui.text.bars import bar, fit
from dflash_tui.widgets.literal import Static
from dflash_tui.widgets.panel import Panel

NAME, SIZE = 14, 10
FLAGGED = 0.02  # a measurement that differs more than this from its prediction is marked


class MemoryPanel(Panel):
    """One bar per component, then predicted, measured and free."""

    def __init__(self) -> None:
        super().__init__("memory")
        self._memory: MemoryBreakdown | None = None
        self._missing = ""

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(_EMPTY, id="memory-body")

    def show(self, memory: MemoryBreakdown | None, missing: str = "") -> None:
        """Draw the memory breakdown of the loaded pair. `missing`: what is not known of it."""
        self._memory, self._missing = memory, missing
        self.draw()

    def draw(self) -> None:
        memory = self._memory
        width = max(self.text_width, 28)
        shown = _EMPTY if memory is None else drawn(memory, width, self._missing)
        self.query_one("#memory-body", Static).update(shown)


_EMPTY = Content.assemble(("Memory\n", "bold"), ("known when the model has loaded", "$foreground 70%"))


def drawn(memory: MemoryBreakdown, width: int, missing: str = "") -> Content:
    """A memory breakdown as text. All bars share one scale: what the program holds. What is free has no bar: on a large
    device it would leave nothing of the others."""
    whole, known = max(memory.predicted, memory.measured, 1), memory.total > 0
    device = f"{memory.device}, {gib(memory.total)}" if known else memory.device
    parts: list[Content | str | tuple[str, str]] = [
        ("Memory", "bold"),
        (f"  {device}\n\n", "$foreground 70%"),
    ]
    bar_width = max(width - NAME - SIZE - 2, 4)
    for one in sorted(memory.components, key=lambda one: one.bytes, reverse=True):
        parts.append(f"{fit(one.name, NAME)}{gib(one.bytes):>{SIZE}}  ")
        parts.append((f"{bar(one.bytes / whole, bar_width)}\n", "$primary"))
        if one.measured is not None:
            found = f"measured {gib(one.measured)}"
            if one.off > FLAGGED:
                parts.append((f"  ! {found}, {one.off:.0%} off\n", "$warning"))
            else:
                parts.append((f"  {found}\n", "$foreground 70%"))
        if one.detail:
            parts.append((f"  {fit(one.detail, width - 2).rstrip()}\n", "$foreground 70%"))
    if not known:
        return Content.assemble(*parts, (missing, "$foreground 70%"))
    parts.append("\n")
    for name, count in (("predicted", memory.predicted), ("measured", memory.measured)):
        shown = gib(count) if count > 0 or name != "measured" else "unknown"
        parts.append(f"{fit(name, NAME)}{shown:>{SIZE}}  ")
        parts.append((f"{bar(count / whole, bar_width)}\n", "$secondary"))
    parts.append(f"{fit('free', NAME)}{gib(memory.free):>{SIZE}}\n")
    return Content.assemble(*parts)
