"""An experiment on its own thread; the app may read its state at any time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING

from dflash_tui.application.background import Background

if TYPE_CHECKING:
    from dflash_core.lab.results import ExperimentProgress
    from dflash_tui.application.decoder_use import DecoderUse

UNDER_WAY = "a measurement is running: Esc stops it"
"""Why nothing else can start."""


class Experiment(Background):
    """`run` is iterated on the thread, while nothing else uses the `decoder`, unless that is None: then it only counts.
    `stop` is called from the app's thread to end the experiment."""

    def __init__(
        self,
        decoder: DecoderUse | None,
        run: Iterator[ExperimentProgress],
        stop: Callable[[], None] | None = None,
    ) -> None:
        super().__init__("dflash-lab")
        self._decoder = decoder
        self._lock = threading.Lock()  # `stop` must not end what another user of the decoder does
        self._mine = False
        self._parts = run
        self._tell = stop
        self.progress: ExperimentProgress | None = None

    def stop(self) -> None:
        super().stop()
        with self._lock:
            if self._tell is not None and self._mine:
                self._tell()

    def work(self) -> None:
        turn = self._decoder.using("a measurement", lambda: self.stopping) if self._decoder else nullcontext(True)
        with turn as mine:
            with self._lock:
                self._mine = mine
            try:
                if mine:
                    self._measure()
            finally:
                with self._lock:
                    self._mine = False

    def _measure(self) -> None:
        for progress in self._parts:
            self.progress = progress
            if self.stopping:
                break
        if isinstance(self._parts, Generator):
            self._parts.close()  # closed here, not by the garbage collector: closing restores the session
