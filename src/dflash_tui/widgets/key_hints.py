"""The last line of a dialog: what its keys do now."""

from __future__ import annotations

from textual.content import Content

from dflash_tui.widgets.literal import Static

KeyHint = tuple[str, str]
BACK: KeyHint = ("Esc", "back")


class KeyHints(Static):
    """Each key as written, and what it does; changed with `tell`."""

    def __init__(self, *hints: KeyHint, id: str | None = None) -> None:
        super().__init__(_line(hints), id=id)
        self.hints = hints

    def tell(self, *hints: KeyHint) -> None:
        """These from now on."""
        self.hints = hints
        self.update(_line(hints))


def _line(hints: tuple[KeyHint, ...]) -> Content:
    parts: list[str | tuple[str, str]] = []
    for key, what in hints:
        parts += ["   " if parts else "", (key, "bold $accent"), f" {what}"]
    return Content.assemble(*parts)
