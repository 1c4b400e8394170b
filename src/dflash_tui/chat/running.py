"""One turn on its own thread. The thread only appends to a deque; the app drains it when it likes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from dflash_core.events import Piece, TurnReport
from dflash_core.knobs import Knobs
from dflash_core.record import TurnRecord
from dflash_tui.chat.background import Background
from dflash_tui.session import OnPrefill, TurnLike


@dataclass(frozen=True, slots=True)
class Arrival:
    """A piece, and when the decoder handed it over."""

    at: float
    piece: Piece


class Running(Background):
    """A turn under way: `start` it, `drain` it, `stop` it from any thread. Never raises in the app's thread."""

    def __init__(self, open_turn: Callable[[OnPrefill], TurnLike]) -> None:
        super().__init__("dflash-turn")
        self._open = open_turn
        self._arrivals: deque[Arrival] = deque()
        self._turn: TurnLike | None = None
        self.prefill = (0, 0)

    def stop(self) -> None:
        """Ask the turn to end after its current step; what it produced is kept."""
        super().stop()
        if self._turn is not None:
            self._turn.stop()

    def change(self, knobs: Knobs) -> None:
        """Have the answer go on with these knobs from its next step."""
        if self._turn is not None:
            self._turn.change(knobs)

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

    @property
    def arrived(self) -> bool:
        """Something waits to be drained."""
        return bool(self._arrivals)

    @property
    def record(self) -> TurnRecord | None:
        return self._turn.record if self._turn is not None else None

    def drain(self) -> list[Arrival]:
        """Everything that has arrived since the last call."""
        taken: list[Arrival] = []
        while self._arrivals:
            taken.append(self._arrivals.popleft())
        return taken

    def _prefilled(self, done: int, total: int) -> None:
        self.prefill = (done, total)

    def work(self) -> None:
        turn = self._turn = self._open(self._prefilled)
        if self.stopping:
            turn.stop()
        for piece in turn:
            self._arrivals.append(Arrival(time.monotonic(), piece))
