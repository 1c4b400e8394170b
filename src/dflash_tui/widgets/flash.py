"""Notices: over a screen's last lines for a while, in the conversation for good, and the list of all."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Literal, Protocol, runtime_checkable

from textual.content import Content
from textual.timer import Timer

from dflash_core.clean import lines, one_line
from dflash_core.errors import DFlashError
from dflash_tui.settings.keys import retold
from dflash_tui.widgets.literal import Static

CAPACITY = 200


class Notices:
    """The newest `CAPACITY` notices since the start of the app."""

    def __init__(self) -> None:
        self._notices: deque[tuple[str, str]] = deque(maxlen=CAPACITY)  # time and text

    def keep(self, text: str, *, error: bool = False) -> None:
        """Add a notice; if it repeats the last one, replace that."""
        text = "✗ " * error + text
        if self._notices and self._notices[-1][1] == text:
            self._notices.pop()
        self._notices.append((f"{datetime.now():%H:%M:%S}", text))

    def page(self) -> str:
        return "\n".join(f"{at}  {text}" for at, text in reversed(self._notices)) or "No notices yet."


MIN_S, PER_CHARACTER_S = 5.0, 0.07  # slow reading, so that a refusal's remedy can be read and typed
FADE_S = 0.4


@runtime_checkable
class Saying(Protocol):
    """A screen that can show short notices."""

    def say(self, what: str | Exception) -> None:
        """Show a notice or an error."""


@contextmanager
def reported(say: Callable[[Exception], object]) -> Iterator[None]:
    """Say a refusal in place of raising it."""
    try:
        yield
    except DFlashError as error:
        say(error)


def stays_s(text: str) -> float:
    return max(MIN_S, PER_CHARACTER_S * len(text))


class Flash(Static):
    """One notice at a time, above everything else on its screen. Notices that must stay in place are a `Note`."""

    def __init__(self) -> None:
        super().__init__("", id="flash")
        self.display = False
        self.text = ""
        self._timer: Timer | None = None

    def say(self, what: str | Exception) -> None:
        """Show a notice, or an error in the error color; the next one replaces it."""
        error, text = isinstance(what, Exception), retold(one_line(str(what)), self.app)
        self.hide()
        self.text = text
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

    def _fade(self) -> None:
        timer = self._timer

        def gone() -> None:
            if self._timer is timer:  # another notice has another one
                self.hide()

        self.styles.animate("opacity", 0.0, duration=FADE_S, on_complete=gone)

    def hide(self) -> None:
        self.text = ""
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        self.app.animator.force_stop_animation(self.styles, "opacity")  # it would fade the next notice
        self.display = False


class Note(Static):
    """Stays in the conversation where it happened."""

    def __init__(self, message: str, advice: str = "", kind: Literal["error", "info"] = "error") -> None:
        super().__init__(classes=f"note -{kind}")
        self.message = lines(message)
        self.advice = lines(advice)
        self._kind = kind

    def on_mount(self) -> None:
        self._draw()

    def advise(self, advice: str) -> None:
        """Replace the second line, for example by the outcome."""
        self.advice = lines(advice)
        if self.is_mounted:
            self._draw()

    def _draw(self) -> None:
        mark, style = ("✗", "bold $error") if self._kind == "error" else ("·", "$foreground 70%")
        message, advice = retold(self.message, self.app), retold(self.advice, self.app)
        below = (f"\n  {advice}" if advice else "", "$foreground 80%")
        self.update(Content.assemble((f"{mark} {message}", style), below))
