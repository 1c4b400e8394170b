"""Memory by owner: what the ledger foretold beside what the process really uses."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content

from dflash_core.memory import Ledger, gib
from dflash_tui.widgets.bars import bar, fit
from dflash_tui.widgets.literal import Static
from dflash_tui.widgets.panel import Panel

NAME, SIZE = 14, 10
FLAGGED = 0.02  # a measurement further off its prediction than this is marked


class MemoryPanel(Panel):
    """One bar per owner, then predicted, measured and free."""

    def __init__(self) -> None:
        super().__init__("memory")
        self._ledger: Ledger | None = None

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(_EMPTY, id="memory-body")

    def show(self, ledger: Ledger | None) -> None:
        """Draw the ledger of the loaded pair."""
        self._ledger = ledger
        self.draw()

    def draw(self) -> None:
        ledger = self._ledger
        width = max(self.query_one(VerticalScroll).scrollable_content_region.width, 28)
        self.query_one("#memory-body", Static).update(_EMPTY if ledger is None else drawn(ledger, width))


_EMPTY = Content.assemble(("Memory\n", "bold"), ("known when the model has loaded", "$foreground 70%"))


def drawn(ledger: Ledger, width: int) -> Content:
    """The ledger as text. Bars share one scale: the largest of its figures."""
    summary = [("predicted", ledger.predicted, ""), ("measured", ledger.measured, ""), ("free", ledger.free, "")]
    scale = max([owner.bytes for owner in ledger.owners] + [1])
    parts: list[Content | str | tuple[str, str]] = [
        ("Memory", "bold"),
        (f"  {ledger.device}, {gib(ledger.total)}\n\n", "$foreground 70%"),
    ]
    room = max(width - NAME - SIZE - 2, 4)
    for owner in sorted(ledger.owners, key=lambda owner: owner.bytes, reverse=True):
        parts.append(f"{fit(owner.name, NAME)}{gib(owner.bytes):>{SIZE}}  ")
        parts.append((f"{bar(owner.bytes / scale, room)}\n", "$primary"))
        if owner.measured is not None:
            found = f"measured {gib(owner.measured)}"
            if owner.off > FLAGGED:
                parts.append((f"  ! {found}, {owner.off:.0%} off\n", "$warning"))
            else:
                parts.append((f"  {found}\n", "$foreground 70%"))
        if owner.detail:
            parts.append((f"  {fit(owner.detail, width - 2).rstrip()}\n", "$foreground 70%"))
    parts.append("\n")
    whole = max(ledger.total, ledger.predicted, 1)
    for name, count, _ in summary:
        known = count > 0 or name != "measured"
        shown = gib(count) if known else "unknown"
        parts.append(f"{fit(name, NAME)}{shown:>{SIZE}}  ")
        parts.append((f"{bar(count / whole, room)}\n", "$accent"))
    return Content.assemble(*parts)
