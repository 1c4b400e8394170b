"""Loading on its own thread. torch is imported there, after the first frame has been drawn."""

from __future__ import annotations

from collections.abc import Callable

from dflash_core.progress import Progress
from dflash_tui.application import collector
from dflash_tui.application.background import Background
from dflash_tui.application.log import LOG
from dflash_tui.application.session import Loader, SessionLike


class Loading(Background):
    """`start` it, then poll `phase`, `fraction` and `over`."""

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


def behind(before: list[SessionLike], loader: Loader, check: Callable[[], None]) -> Loader:
    """A loader that first has the session in `before` save its conversation's state, and releases it: two models may
    not fit the machine. If `check` raises, the session stays."""

    def load(progress: Progress) -> SessionLike:
        if before:
            progress("looking at the files", 0.0)
            check()
            progress("saving the conversation's state", 0.0)
            try:
                before.pop().leave()
            except Exception:  # only an optimization: on any failure the conversation is prefilled again
                LOG.warning("the state of the conversation is not saved", exc_info=True)
        collector.release()
        return loader(progress)

    return load
