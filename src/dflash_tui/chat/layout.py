"""The layout of the chat screen by terminal size: sets CSS classes for the style sheet."""

from __future__ import annotations

from dataclasses import dataclass

from textual.geometry import Size

from dflash_tui.chat.controller import Controller
from dflash_tui.chat.gauges import Gauges
from dflash_tui.widgets.literal import Static

NARROW, PAIRS, WIDE, SHORT, LOW = 110, 160, 200, 34, 16
TALL = 40  # rows from which on a column has two panels, one below the other
MIN_SIZE = (40, 12)


@dataclass(eq=False)
class ChatLayout(Controller):
    """Belongs to one chat. Whether the inspector is open is stored separately for narrow and other terminals. None: it
    is open once there are figures; on a wide terminal the panels that need none are open before."""

    _gauges: Gauges

    def __post_init__(self) -> None:
        remembered = self.state.remembered
        # By whether the terminal is narrow.
        closed = False if "inspector hidden" in remembered else None
        self._side: dict[bool, bool | None] = {True: "drawer open" in remembered, False: closed}
        self._size = Size()

    @property
    def _narrow(self) -> bool:
        return self._size.width < NARROW

    @property
    def drawer(self) -> bool:
        """The inspector covers the conversation."""
        return self._narrow and bool(self._side[True])

    @property
    def _open(self) -> bool:
        side = self._side[self._narrow]
        return side if side is not None else self._size.width >= WIDE or self._gauges.any

    def resized(self, size: Size) -> None:
        """Set the terminal's size, in cells. Called before mounting, so that widgets start with the classes."""
        self._size = size
        self._lay_out()

    def _lay_out(self) -> None:
        screen, narrow, (width, height) = self.screen, self._narrow, self._size
        wide = width >= WIDE
        pairs = wide or (width >= PAIRS and height >= TALL)
        tiny = width < MIN_SIZE[0] or height < MIN_SIZE[1]
        # All at once: each change of the classes restyles all widgets outside the messages.
        screen.update_classes(
            {
                "-narrow": narrow, "-wide": wide, "-pairs": pairs, "-short": height < SHORT, "-low": height < LOW,
                "-side": self._side[narrow] is not False, "-drawer": self.drawer, "-tiny": tiny,
                "-auto": self._side[narrow] is None,
            },
            update=screen.is_mounted,
        )  # fmt: skip
        if not screen.is_mounted:
            return
        screen.refresh_bindings()
        self.inspector.name_keys(pairs)
        if tiny:
            needs = f"dflash-tui needs {MIN_SIZE[0]}x{MIN_SIZE[1]} or more"
            screen.query_one("#tiny", Static).update(f"This terminal is {width}x{height}; {needs}. Enlarge it.")
        elif screen.focused is None or (not self._open and self.inspector in screen.focused.ancestors):
            self.prompt.focus()  # what had the focus was hidden by this size, or by one that was too small
        screen.call_after_refresh(self._gauges.draw)

    def toggle(self) -> None:
        """Show or hide the inspector, from now on and at the next start."""
        self._side[self._narrow] = shown = not self._open
        if self._narrow:
            self.state.remembered.put("drawer open", shown)
        else:
            self.state.remembered.put("inspector hidden", not shown)
        self._lay_out()
        if not shown:
            self.prompt.focus()

    @property
    def saved(self) -> tuple[dict[bool, bool | None], str]:
        return dict(self._side), self.inspector.active

    def restore(self, saved: tuple[dict[bool, bool | None], str]) -> None:
        self._side, self.inspector.active = dict(saved[0]), saved[1]
        self._lay_out()

    def show(self, name: str) -> None:
        """Show a panel without focusing it."""
        self._side[self._narrow] = True
        self.inspector.active = name
        self._lay_out()

    def panel(self, name: str) -> None:
        """Show a panel of the inspector; in a drawer, the same name closes it again."""
        inspector = self.inspector
        if self.drawer and inspector.active == name:
            self.toggle()
            return
        if not self._open or (self._size.width >= WIDE and not inspector.sees(name)):
            self._side[self._narrow] = True
            self._lay_out()
        inspector.enter(name)
