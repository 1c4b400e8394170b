"""The row above the prompt that says how far the loading is."""

from __future__ import annotations

import time

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from dflash_core.clean import one_line
from dflash_tui.application.amounts import seconds
from dflash_tui.text.bars import clip, meter


class LoadingLine(Widget):
    """What the loader is doing, how far it is, how long it has taken."""

    phase: reactive[str] = reactive("")
    fraction: reactive[float] = reactive(0.0)
    elapsed: reactive[float] = reactive(0.0)

    def __init__(self) -> None:
        super().__init__(id="loading")
        self._began = time.monotonic()

    def begin(self) -> None:
        self._began = time.monotonic()
        self.phase, self.fraction, self.elapsed = "starting", 0.0, 0.0
        self.display = True

    def show(self, phase: str, fraction: float) -> None:
        self.phase, self.fraction = phase, fraction
        self.elapsed = time.monotonic() - self._began

    def validate_phase(self, phase: str) -> str:
        return one_line(phase)

    def render(self) -> Content:
        width = self.size.width - 2
        known = f" {meter(self.fraction, 12)} {self.fraction * 100:.0f}%" if self.fraction > 0 else ""
        rest = f"{known}  {seconds(self.elapsed)}"
        return Content.assemble(
            (f" {clip(f'loading: {self.phase}', width - len(rest))}", "$accent"),
            rest,
        )
