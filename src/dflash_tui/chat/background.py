"""Work on a separate thread, and how it ended."""

from __future__ import annotations

import threading
import traceback

from dflash_core.errors import DFlashError


class Background:
    """`start` it, then look at `over`; afterwards `error` says how it ended. Never raises in the app's thread."""

    def __init__(self, name: str) -> None:
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._over = threading.Event()
        self.error: Exception | None = None
        self.trace = ""
        # Daemon: an engine that is deep in one long step must not keep a closed app alive.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def work(self) -> None:
        """What the thread does; it checks `stopping` now and then."""
        raise NotImplementedError

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask for the end; what is there by then is kept."""
        self._stop.set()
        self._wake.set()

    def wake(self) -> None:
        """There is something to do: `work` goes on from where it waits."""
        self._wake.set()

    def wait(self) -> None:
        """Of `work`: until it is woken or is to stop."""
        self._wake.wait()
        self._wake.clear()

    def join(self, timeout: float) -> bool:
        """Wait for the thread; True where it has ended, or was never started."""
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    @property
    def over(self) -> bool:
        """The thread is done and changes nothing more. Read this before the last look at what it made."""
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
    """Cut the tracebacks of an error and of its causes: their frames keep alive what was half loaded."""
    chain: list[BaseException | None] = [error]
    seen: list[BaseException] = []
    while chain:
        one = chain.pop()
        if one is not None and one not in seen:
            seen.append(one)
            one.__traceback__ = None
            chain += [one.__cause__, one.__context__]
