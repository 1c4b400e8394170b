"""What the four inspector panels share."""

from __future__ import annotations

from textual.containers import Vertical
from textual.events import Resize


class Panel(Vertical):
    """A panel of the inspector; `-active` is the one that the tabs show."""

    TITLE = ""

    def __init__(self, name: str) -> None:
        super().__init__(id=f"panel-{name}", classes="panel")

    def draw(self) -> None:
        """Draw what was shown last, at the present width."""

    def on_resize(self, event: Resize) -> None:
        self.draw()

    def enter(self) -> None:
        """Take the focus when the user asks for this panel."""
        scroll = self.query("VerticalScroll")
        if scroll:
            scroll.first().focus()
