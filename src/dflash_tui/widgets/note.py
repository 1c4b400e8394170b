"""An inline note: what happened, and what to do about it."""

from __future__ import annotations

from typing import Literal

from textual.content import Content

from dflash_core.clean import lines
from dflash_tui.settings.keys import retold
from dflash_tui.widgets.literal import Static

_MARKS = {"error": "✗", "info": "·"}


class Note(Static):
    """Stays in the conversation where it happened."""

    def __init__(self, message: str, advice: str = "", kind: Literal["error", "info"] = "error") -> None:
        super().__init__(classes=f"note -{kind}")
        self.message = lines(message)
        self.advice = lines(advice)
        self._kind = kind

    def on_mount(self) -> None:
        self._draw()

    def advise(self, advice: str) -> None:
        """Replace the second line, for example by the outcome."""
        self.advice = lines(advice)
        if self.is_mounted:
            self._draw()

    def _draw(self) -> None:
        style = "bold $error" if self._kind == "error" else "$foreground 70%"
        parts: list[str | tuple[str, str]] = [(f"{_MARKS[self._kind]} {retold(self.message, self.app)}", style)]
        if self.advice:
            parts.append((f"\n  {retold(self.advice, self.app)}", "$foreground 80%"))
        self.update(Content.assemble(*parts))
