"""Completes paths in a field."""

from __future__ import annotations

from pathlib import Path

from textual.suggester import Suggester


class Paths(Suggester):
    """Completes a path from what is in its folder."""

    def __init__(self, *, drafts: bool) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._ends = (".gguf", "/", ".safetensors") if drafts else (".gguf", "/")

    async def get_suggestion(self, value: str) -> str | None:
        """The first entry that goes on from `value`: a folder, or a file that may be a model."""
        folder, _, start = value.rpartition("/")
        try:
            where = Path(folder + "/" if value.startswith("/") else folder or ".").expanduser()
            names = sorted(one.name + "/" * one.is_dir() for one in where.iterdir() if one.name.startswith(start))
        except (OSError, RuntimeError):
            return None
        found = next((name for name in names if name.endswith(self._ends) and not name.startswith(".")), None)
        return None if found is None else value[: len(value) - len(start)] + found
