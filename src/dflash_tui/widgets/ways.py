"""The last line of a dialog: what its keys do now."""

from __future__ import annotations

from textual.content import Content

from dflash_tui.widgets.literal import Static

Way = tuple[str, str]
BACK: Way = ("Esc", "back")


class Ways(Static):
    """Each key as written, and what it does; changed with `tell`."""

    def __init__(self, *ways: Way, id: str | None = None) -> None:
        super().__init__(_line(ways), id=id)
        self.ways = ways

    def tell(self, *ways: Way) -> None:
        """These from now on."""
        self.ways = ways
        self.update(_line(ways))


def _line(ways: tuple[Way, ...]) -> Content:
    parts: list[str | tuple[str, str]] = []
    for key, what in ways:
        parts += ["   " if parts else "", (key, "bold $accent"), f" {what}"]
    return Content.assemble(*parts)
