"""Work on a separate thread, and how it ended."""

from __future__ import annotations

import threading
import traceback

from dflash_core.errors import DFlashError


class Background:
    """`start` it, then poll `over`; afterwards `error` says how it ended. Never raises in the app's thread."""

    def __init__(self, name: str) -> None:
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._over = threading.Event()
        self.error: Exception | None = None
        self.trace = ""
        # Daemon: an engine in the middle of a long step must not keep a closed app alive.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def work(self) -> None:
        """Runs on the thread; it checks `stopping` regularly."""
        raise NotImplementedError

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Request the end; the results so far remain."""
        self._stop.set()
        self._wake.set()

    def wake(self) -> None:
        """There is work to do: `work` returns from `wait`."""
        self._wake.set()

    def wait(self) -> None:
        """Called by `work`: block until `wake` or `stop`."""
        self._wake.wait()
        self._wake.clear()

    def join(self, timeout: float) -> bool:
        """Wait for the thread; True if it has ended or was never started."""
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    @property
    def over(self) -> bool:
        """The thread is done and changes nothing more. Check this before reading the results for the last time."""
        return self._over.is_set()

    def _run(self) -> None:
        try:
            self.work()
        except DFlashError as error:
            self.error = error
        except Exception as error:
            self.error = error
            self.trace = traceback.format_exc()
        finally:
            _drop_frames(self.error)
            self._over.set()


def _drop_frames(error: Exception | None) -> None:
    """Remove the tracebacks of an error and its causes: their frames keep half-loaded objects alive."""
    chain: list[BaseException | None] = [error]
    seen: list[BaseException] = []
    while chain:
        one = chain.pop()
        if one is not None and one not in seen:
            seen.append(one)
            one.__traceback__ = None
            chain += [one.__cause__, one.__context__]
