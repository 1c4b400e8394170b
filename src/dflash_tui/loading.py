"""Loading on its own thread. torch is imported there, after the first frame has been painted."""

from __future__ import annotations

import threading
import traceback

from dflash_core.errors import DFlashError
from dflash_tui.session import Loader, SessionLike


class Loading:
    """`start` it, then look at `phase`, `fraction` and `over`."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._over = threading.Event()
        self.phase = "starting"
        self.fraction = 0.0
        self.session: SessionLike | None = None
        self.error: Exception | None = None
        self.trace = ""
        self._thread = threading.Thread(target=self._run, name="dflash-load", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def over(self) -> bool:
        return self._over.is_set()

    def _progress(self, phase: str, fraction: float) -> None:
        self.phase, self.fraction = phase, min(max(fraction, 0.0), 1.0)

    def _run(self) -> None:
        try:
            self.session = self._loader(self._progress)
        except DFlashError as error:
            self.error = error
        except Exception as error:
            self.error = error
            self.trace = traceback.format_exc()
        finally:
            self._over.set()
