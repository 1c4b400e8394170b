"""An experiment on its own thread; the app may read its state at any time."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING

from dflash_tui.application.background import Background

if TYPE_CHECKING:
    from dflash_core.lab.progress import ExperimentProgress

UNDER_WAY = "a measurement is running: Esc stops it"
"""Why nothing else can start."""


class Experiment(Background):
    """`run` is iterated on the thread; `stop` is called from the app's thread to end the experiment."""

    def __init__(self, run: Iterator[ExperimentProgress], stop: Callable[[], None] | None = None) -> None:
        super().__init__("dflash-lab")
        self._parts = run
        self._tell = stop
        self.progress: ExperimentProgress | None = None

    def stop(self) -> None:
        super().stop()
        if self._tell is not None:
            self._tell()

    def work(self) -> None:
        for progress in self._parts:
            self.progress = progress
            if self.stopping:
                break
        if isinstance(self._parts, Generator):
            self._parts.close()  # closed here, not by the garbage collector: closing restores the session
