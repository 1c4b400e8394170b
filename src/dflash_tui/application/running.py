"""One turn on its own thread. The thread only appends to a deque; the app drains it at any time."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from dflash_core.errors import DFlashError
from dflash_core.knobs import Knobs
from dflash_tui.application.background import Background
from dflash_tui.application.session import OnPrefill, TurnLike

if TYPE_CHECKING:
    from dflash_core.events import Piece
    from dflash_tui.application.decoder_use import DecoderUse


class Running(Background):
    """A running turn: `start` it, `drain` it, `stop` it from any thread. Never raises in the app's thread.

    `turn` is set once the conversation has accepted the message; it stays None after a refusal.
    `began`: the `time.monotonic()` at second 0 of its pieces.
    """

    def __init__(
        self,
        decoder: DecoderUse,
        open_turn: Callable[[OnPrefill], TurnLike],
        pieces: Callable[[TurnLike], Iterator[Piece]] = iter,
        saved: Callable[[], int] = lambda: sys.maxsize,
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        """`open_turn` starts the turn, `pieces` iterates over it; both are called on the thread.

        `saved` is the number of pieces that may be shown, because they are on the disk. `decoder`: others use it too;
        `ready` returns when whatever yields to a turn has stopped.
        """
        super().__init__("dflash-turn")
        self._open, self._pieces, self._saved = open_turn, pieces, saved
        self._decoder, self._ready = decoder, ready
        self.waits = True  # for the decoder
        self._drained = 0
        self._arrived: deque[Piece] = deque()
        self.turn: TurnLike | None = None
        self.began = time.monotonic()
        self.prefill = (0, 0)
        self._answers_now = False

    def stop(self) -> None:
        """Stop the turn after its current step; its text remains."""
        super().stop()
        if self.turn is not None:
            self.turn.stop()

    def answer_now(self) -> None:
        """Close the reasoning before the next step."""
        self._answers_now = True
        if self.turn is not None:
            self.turn.answer_now()

    def change(self, knobs: Knobs) -> None:
        """Use these knobs for the rest of the answer, from its next step on."""
        if self.turn is not None:
            self.turn.change(knobs)

    @property
    def arrived(self) -> bool:
        """There is something to drain."""
        return bool(self._arrived)

    def drain(self) -> list[Piece]:
        """Everything that has arrived since the last call and is saved."""
        taken: list[Piece] = []
        while self._arrived and self._drained + len(taken) < self._saved():
            taken.append(self._arrived.popleft())
        self._drained += len(taken)
        return taken

    def _prefilled(self, done: int, total: int) -> None:
        self.prefill = (done, total)

    def work(self) -> None:
        self._ready()
        with self._decoder.using("the chat's answer", lambda: self.stopping) as mine:
            if not mine:
                raise DFlashError("stopped while the decoder answered another program; send the message again")
            self.waits = False
            self._turn()

    def _turn(self) -> None:
        turn = self.turn = self._open(self._prefilled)
        self.began = time.monotonic()
        if self.stopping:
            turn.stop()
        if self._answers_now:
            turn.answer_now()
        for piece in self._pieces(turn):
            self._arrived.append(piece)
