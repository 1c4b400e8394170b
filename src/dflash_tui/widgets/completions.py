"""Completions of a slash command, shown above the prompt while it is typed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from textual.content import Content

from dflash_tui.widgets.literal import Static

SHOWN = 6


class Completion(NamedTuple):
    """`text` is the whole prompt after the completion is taken."""

    text: str
    label: str
    help: str = ""


class Completions(Static):
    """Tab takes the marked completion, Up and Down mark another. Enter takes only one marked with Up or Down."""

    def __init__(self) -> None:
        super().__init__("", id="completions")
        self.display = False
        self.rows: Sequence[Completion] = ()
        self.marked = 0
        self.moved = False  # the user has moved the mark

    def show(self, rows: Sequence[Completion]) -> None:
        if rows != self.rows:
            self.rows, self.marked, self.moved = rows, 0, False
            self.display = bool(rows)
            self._draw()

    def move(self, count: int) -> None:
        self.marked, self.moved = (self.marked + count) % len(self.rows), True
        self._draw()

    @property
    def chosen(self) -> Completion | None:
        return self.rows[self.marked] if self.rows else None

    @property
    def taken_by_enter(self) -> bool:
        return bool(self.rows) and self.moved

    def _draw(self) -> None:
        width = max((len(row.label) for row in self.rows), default=0) + 2
        first = min(max(self.marked - SHOWN // 2, 0), max(len(self.rows) - SHOWN, 0))
        parts: list[str | tuple[str, str]] = []
        for number, row in list(enumerate(self.rows))[first : first + SHOWN]:
            mark, style = ("▸", "bold") if number == self.marked else (" ", "")
            parts += [(f"{mark} {row.label:<{width}}", style), (f"{row.help}\n", "$foreground 70%")]
        more = len(self.rows) - first - SHOWN
        parts.append((f"  {more} more" if more > 0 else "", "$foreground 70%"))
        self.update(Content.assemble(*parts).rstrip())
