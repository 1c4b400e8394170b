"""An inline note: what happened, and what to do about it."""

from __future__ import annotations

from typing import Literal

from textual.content import Content
from textual.widgets import Static

_MARKS = {"error": "✗", "info": "·"}


class Note(Static):
    """Stays in the conversation where it happened."""

    def __init__(self, message: str, advice: str = "", kind: Literal["error", "info"] = "error") -> None:
        style = "bold $error" if kind == "error" else "$foreground 70%"
        parts: list[str | tuple[str, str]] = [(f"{_MARKS[kind]} {message}", style)]
        if advice:
            parts.append((f"\n  {advice}", "$foreground 80%"))
        super().__init__(Content.assemble(*parts), classes=f"note -{kind}")
        self.message = message
        self.advice = advice
