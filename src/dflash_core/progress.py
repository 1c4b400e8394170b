"""How loading reports progress: a phase in words, and the share done."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, float], None]


def silent(phase: str, done: float) -> None:
    """Progress that is not shown."""
