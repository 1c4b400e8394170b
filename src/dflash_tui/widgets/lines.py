"""The one-row messages above the prompt: loading, and small facts that go away by themselves."""

from __future__ import annotations

import time

from textual.content import Content
from textual.reactive import reactive
from textual.timer import Timer
from textual.widget import Widget

from dflash_core.clean import one_line
from dflash_tui.settings.keys import retold
from dflash_tui.text.bars import clip, meter, seconds
from dflash_tui.widgets.literal import Static


class LoadingLine(Widget):
    """What the loader is doing, how far it is, how long it has taken."""

    phase: reactive[str] = reactive("")
    fraction: reactive[float] = reactive(0.0)
    elapsed: reactive[float] = reactive(0.0)

    def __init__(self) -> None:
        super().__init__(id="loading")
        self._began = time.monotonic()

    def begin(self) -> None:
        self._began = time.monotonic()
        self.phase, self.fraction, self.elapsed = "starting", 0.0, 0.0
        self.display = True

    def show(self, phase: str, fraction: float) -> None:
        self.phase, self.fraction = phase, fraction
        self.elapsed = time.monotonic() - self._began

    def validate_phase(self, phase: str) -> str:
        return one_line(phase)

    def render(self) -> Content:
        width = self.size.width - 2
        known = f" {meter(self.fraction, 12)} {self.fraction * 100:.0f}%" if self.fraction > 0 else ""
        rest = f"{known}  {seconds(self.elapsed)}"
        return Content.assemble((f" {clip(f'loading: {self.phase}', width - len(rest))}", "$accent"), rest)


class Flash(Static):
    """A small fact for a few seconds. Errors that matter later are notes, not flashes."""

    def __init__(self) -> None:
        super().__init__("", id="flash")
        self.text = ""
        self._timer: Timer | None = None

    def say(self, text: str, keep_s: float = 5.0) -> None:
        """Show `text`; the next one replaces it."""
        self.text = text = retold(one_line(text), self.app)
        self.update(Content(text))
        self.display = bool(text)
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_timer(keep_s, self.hide) if text else None

    def outdated(self, words: str) -> None:
        """Hide a fact that says `words`, because they are no longer true."""
        if words in self.text:
            self.hide()

    def hide(self) -> None:
        self.text = ""
        self.display = False

    def on_mount(self) -> None:
        self.display = False
