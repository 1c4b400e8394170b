"""Work on threads of its own: a turn, an experiment, what takes a moment; and who of them uses the decoder."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, TypeVar

from dflash_core.errors import DFlashError
from dflash_core.knobs import Knobs
from dflash_tui.application.session import OnPrefill, TurnLike

if TYPE_CHECKING:
    from dflash_core.events import Piece
    from dflash_core.lab.results import ExperimentProgress


ASIDE = "dflash-aside"
Result = TypeVar("Result")


async def aside(work: Callable[[], Result]) -> Result:
    """What `work` returns or raises, run on a thread that the end of the program does not wait for."""
    future, context = Future[Result](), contextvars.copy_context()
    future.set_running_or_notify_cancel()  # what gives up waiting does not cancel it

    def run() -> None:
        try:
            future.set_result(context.run(work))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=ASIDE, daemon=True).start()
    return await asyncio.wrap_future(future)


def any_aside() -> bool:
    """Whether some of it is under way. An interpreter that shuts down meanwhile can crash."""
    return any(thread.name == ASIDE for thread in threading.enumerate())


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


LOOK_S = 0.05
"""How often a user that waits checks whether it has given up."""


class DecoderUse:
    """The queue before the decoder. Usable from any thread."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._users: deque[tuple[str, object]] = deque()  # with what tells users of one name apart

    @property
    def used_by(self) -> str:
        """What the present user does; "" while the decoder is free."""
        with self._condition:
            return self._users[0][0] if self._users else ""

    @contextmanager
    def using(self, name: str, given_up: Callable[[], bool] = lambda: False) -> Iterator[bool]:
        """Wait for the decoder and use it within the block. False: the user has given up and must not use it."""
        user = (name, object())
        with self._condition:
            self._users.append(user)
        try:
            with self._condition:
                while self._users[0] is not user and not given_up():
                    self._condition.wait(LOOK_S)
                first = self._users[0] is user
            yield first and not given_up()
        finally:
            with self._condition:
                self._users.remove(user)
                self._condition.notify_all()


UNDER_WAY = "a measurement is running: Esc stops it"
"""Why nothing else can start."""


class Experiment(Background):
    """`run` is iterated on the thread, while nothing else uses the `decoder`, unless that is None: then it only counts.
    `stop` is called from the app's thread to end the experiment."""

    def __init__(
        self, decoder: DecoderUse | None, run: Iterator[ExperimentProgress], stop: Callable[[], None] | None = None
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
                for progress in self._parts if mine else ():
                    self.progress = progress
                    if self.stopping:
                        break
                if mine and isinstance(self._parts, Generator):
                    self._parts.close()  # closed here, not by the garbage collector: closing restores the session
            finally:
                with self._lock:
                    self._mine = False


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
            turn = self.turn = self._open(self._prefilled)
            self.began = time.monotonic()
            if self.stopping:
                turn.stop()
            if self._answers_now:
                turn.answer_now()
            for piece in self._pieces(turn):
                self._arrived.append(piece)
