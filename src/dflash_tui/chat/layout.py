"""Layout of the chat screen by terminal size: sets CSS classes for the style sheet."""

from __future__ import annotations

from textual.geometry import Size

from dflash_tui.chat.desk import Desk
from dflash_tui.chat.gauges import Gauges
from dflash_tui.widgets.literal import Static

NARROW, WIDE, SHORT, LOW = 110, 160, 34, 16
LEAST = (40, 12)


class Layout:
    """Belongs to one chat. Whether the inspector is open is kept separately for narrow and other terminals."""

    def __init__(self, desk: Desk, gauges: Gauges) -> None:
        self._desk = desk
        self._gauges = gauges
        self._side = {True: False, False: True}  # key: whether the terminal is narrow
        self._size = Size()

    @property
    def _narrow(self) -> bool:
        return self._size.width < NARROW

    @property
    def drawer(self) -> bool:
        """The inspector covers the conversation."""
        return self._narrow and self._side[True]

    def resized(self, size: Size) -> None:
        """Set the terminal's size, in cells. Called before mounting, so that widgets start with the classes."""
        self._size = size
        self._lay_out()

    def _lay_out(self) -> None:
        screen, narrow = self._desk.screen, self._narrow
        width, height = self._size
        tiny = width < LEAST[0] or height < LEAST[1]
        # All at once: each change of the classes restyles all widgets.
        screen.update_classes(
            {
                "-narrow": narrow, "-wide": width >= WIDE, "-short": height < SHORT, "-low": height < LOW,
                "-side": self._side[narrow], "-drawer": self.drawer, "-tiny": tiny,
            },
            update=screen.is_mounted,
        )  # fmt: skip
        if not screen.is_mounted:
            return
        screen.refresh_bindings()
        if tiny:
            text = f"This terminal is {width}x{height}; dflash-tui needs {LEAST[0]}x{LEAST[1]} or more. Enlarge it."
            screen.query_one("#tiny", Static).update(text)
        screen.call_after_refresh(self._gauges.draw)

    def toggle(self) -> None:
        """Show or hide the inspector."""
        self._side[self._narrow] = not self._side[self._narrow]
        self._lay_out()
        if not self._side[self._narrow]:
            self._desk.prompt.focus()

    @property
    def kept(self) -> tuple[dict[bool, bool], str]:
        """The open parts, for `restore`."""
        return dict(self._side), self._desk.inspector.active

    def restore(self, kept: tuple[dict[bool, bool], str]) -> None:
        """Open and close the parts as they were before."""
        self._side, self._desk.inspector.active = dict(kept[0]), kept[1]
        self._lay_out()

    def show(self, name: str) -> None:
        """Show a panel without focusing it."""
        self._side[self._narrow] = True
        self._desk.inspector.active = name
        self._lay_out()

    def panel(self, name: str) -> None:
        """Show a panel of the inspector; in a drawer, the same name closes it again."""
        inspector = self._desk.inspector
        if self.drawer and inspector.active == name:
            self.toggle()
            return
        if not self._side[self._narrow]:
            self._side[self._narrow] = True
            self._lay_out()
        inspector.enter(name)
