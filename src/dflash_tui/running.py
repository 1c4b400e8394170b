"""One turn on its own thread. The thread only appends to a deque; the app drains it when it likes."""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from dflash_core.errors import DFlashError
from dflash_core.events import Piece, TurnReport
from dflash_tui.session import OnPrefill, TurnLike


@dataclass(frozen=True, slots=True)
class Arrival:
    """A piece, and when the decoder handed it over."""

    at: float
    piece: Piece


class Running:
    """A turn under way: `start` it, `drain` it, `stop` it from any thread. Never raises in the app's thread."""

    def __init__(self, open_turn: Callable[[OnPrefill], TurnLike]) -> None:
        self._open = open_turn
        self._arrivals: deque[Arrival] = deque()
        self._stop = threading.Event()
        self._over = threading.Event()
        self._turn: TurnLike | None = None
        self.prefill = (0, 0)
        self.error: Exception | None = None
        self.trace = ""
        # Daemon: a decoder that is deep in one long step must not keep a closed app alive.
        self._thread = threading.Thread(target=self._run, name="dflash-turn", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask the turn to end after its current step; what it produced is kept."""
        self._stop.set()
        if self._turn is not None:
            self._turn.stop()

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
        """The thread is done and will append nothing more. Read this before the last `drain`."""
        return self._over.is_set()

    @property
    def opened(self) -> bool:
        """The conversation took the message; until then a refusal leaves no trace in it."""
        return self._turn is not None

    @property
    def text(self) -> str:
        return self._turn.text if self._turn is not None else ""

    @property
    def thinking(self) -> str:
        return self._turn.thinking if self._turn is not None else ""

    @property
    def report(self) -> TurnReport | None:
        return self._turn.report if self._turn is not None else None

    def drain(self) -> list[Arrival]:
        """Everything that has arrived since the last call."""
        taken: list[Arrival] = []
        while self._arrivals:
            taken.append(self._arrivals.popleft())
        return taken

    def _prefilled(self, done: int, total: int) -> None:
        self.prefill = (done, total)

    def _run(self) -> None:
        try:
            turn = self._turn = self._open(self._prefilled)
            if self._stop.is_set():
                turn.stop()
            for piece in turn:
                self._arrivals.append(Arrival(time.monotonic(), piece))
        except DFlashError as error:
            self.error = error
        except Exception as error:
            self.error = error
            self.trace = traceback.format_exc()
        finally:
            self._over.set()
