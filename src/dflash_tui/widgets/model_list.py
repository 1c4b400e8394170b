"""The list of models, and the fields above it, with completion of paths."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.suggester import Suggester
from textual.widgets import Input

from dflash_tui.widgets.literal import OptionList

DEMO = "demo"
FILE, PROFILE, PAIR, TYPED = "file ", "profile ", "pair ", "typed"  # beginnings of the ids of rows


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
        found = (name for name in names if name.endswith(self._ends) and not name.startswith("."))
        return next((value.removesuffix(start) + name for name in found), None)


class ModelList(OptionList):
    """A row is known by its id, which begins with `FILE`, `PROFILE` or `PAIR`."""

    HELP = (
        "↑ and ↓ choose, ← and → change the drafter, Enter loads. What is typed narrows the list; a path"
        " is a model. A profile is a model with all its settings."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select", "Load"),
        Binding("left", "screen.drafter(-1)", "Drafter", show=False),
        Binding("right", "screen.drafter(1)", "Drafter", key_display="← →"),
    ]

    def hint(self, action: str, label: str) -> str:
        """Enter on what is not here yet asks the hub."""
        if action != "select":
            return label
        return "Get" if self.row.startswith(PAIR) else label if self.row else ""


class ModelField(Input):
    """Above the list."""

    HELP = "Words narrow the list. A path, with a / or ~ in front or .gguf at its end, is a model; Enter loads it."
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "screen.move(1)", show=False),
        Binding("up", "screen.move(-1)", show=False),
        Binding("enter", "submit", "Load"),
    ]

    def hint(self, action: str, label: str) -> str:
        if action != "submit" or self.path:
            return label
        rows = self.screen.query_one(ModelList)
        return rows.hint("select", label) if rows.row else ""

    @property
    def path(self) -> str:
        """The typed path; "" if the text is not a path."""
        text = self.value.strip()
        return text if is_path(text) else ""

    @property
    def words(self) -> tuple[str, ...]:
        """The typed words; none if the text is a path."""
        return () if self.path else tuple(self.value.lower().split())


class DraftField(Input):
    """Below the field, where that has a path: which drafter."""

    HELP = "A file, a folder, or text; empty is the head that the model brings, if any. → completes, Enter loads both."
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "submit", "Load")]


def is_path(text: str) -> bool:
    """Whether a typed text is a path and not search words."""
    return text.startswith(("/", "~", "./", "../")) or text.lower().endswith(".gguf")
