"""Short notices over a screen's last lines. The notices fade, move no text, and can be read again with /notices."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from textual.content import Content
from textual.timer import Timer

from dflash_core.clean import one_line
from dflash_tui.settings.keys import retold
from dflash_tui.text.notices import Notices
from dflash_tui.widgets.literal import Static

MIN_S, PER_CHARACTER_S = 5.0, 0.07  # slow reading, so that a refusal's remedy can be read and typed
FADE_S = 0.4


@runtime_checkable
class Saying(Protocol):
    """A screen that can show short notices."""

    def say(self, what: str | Exception) -> None:
        """Show a notice or an error."""
        ...


def stays_s(text: str) -> float:
    """How long a notice is shown, in seconds."""
    return max(MIN_S, PER_CHARACTER_S * len(text))


class Flash(Static):
    """One notice at a time, above everything else on its screen. Notices that must stay in place are a `Note`."""

    def __init__(self) -> None:
        super().__init__("", id="flash")
        self.text = ""
        self._timer: Timer | None = None

    def say(self, what: str | Exception) -> None:
        """Show a notice, or an error in the error color; the next one replaces it."""
        error = isinstance(what, Exception)
        self.text = text = retold(one_line(str(what)), self.app)
        self._end()
        if not text:
            return
        self.set_class(error, "-error")
        self.update(Content.assemble(("✗ " if error else "", "bold"), text))
        self.styles.opacity = 1.0
        self.display = True
        if isinstance(notices := getattr(self.app, "notices", None), Notices):
            notices.keep(text, error=error)
        self._timer = self.set_timer(stays_s(text), self._fade)

    def outdated(self, words: str) -> None:
        """Hide a notice that contains `words`, because it is no longer true."""
        if words in self.text:
            self.hide()

    def hide(self) -> None:
        self.text = ""
        self._end()

    def _fade(self) -> None:
        timer = self._timer

        def gone() -> None:
            if self._timer is timer:  # another notice has another one
                self.hide()

        self.styles.animate("opacity", 0.0, duration=FADE_S, on_complete=gone)

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        self.app.animator.force_stop_animation(self.styles, "opacity")  # it would fade the next notice
        self.display = False

    def on_mount(self) -> None:
        self.display = False
