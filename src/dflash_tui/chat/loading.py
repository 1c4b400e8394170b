"""Loading on its own thread. torch is imported there, after the first frame has been painted."""

from __future__ import annotations

from dflash_tui.chat.background import Background
from dflash_tui.session import Loader, SessionLike


class Loading(Background):
    """`start` it, then look at `phase`, `fraction` and `over`."""

    def __init__(self, loader: Loader) -> None:
        super().__init__("dflash-load")
        self._loader = loader
        self.phase = "starting"
        self.fraction = 0.0
        self.session: SessionLike | None = None

    def _progress(self, phase: str, fraction: float) -> None:
        self.phase, self.fraction = phase, min(max(fraction, 0.0), 1.0)

    def work(self) -> None:
        self.session = self._loader(self._progress)
