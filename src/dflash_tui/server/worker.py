"""The engine's thread and the queue before it: one answer at a time, first come, first served."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from dflash_core.engine import Engine
from dflash_core.errors import GrammarError, KernelError
from dflash_tui.application.background import DecoderUse
from dflash_tui.application.log import LOG
from dflash_tui.server.job import Job
from dflash_tui.server.request_error import RequestError, busy, ending
from dflash_tui.server.updates import Ended, Failed

OnEnded = Callable[[Job, Ended | Failed], None]


class Worker:
    """Runs jobs on a thread of its own, while nothing else uses the engine. Other methods from any thread.

    `ended` is called on that thread with the last update of each job that ran.
    """

    def __init__(self, engine: Engine, queue: int, ended: OnEnded, decoder: DecoderUse | None = None) -> None:
        """`queue`: jobs that may wait while another one runs. `decoder`: where others use the engine too."""
        self._engine, self._queue, self._ended = engine, queue, ended
        self._decoder = decoder or DecoderUse()
        self._waiting: deque[Job] = deque()
        self.running: Job | None = None
        self.ending = False
        self.broken = ""
        """Why the engine can answer nothing any more; "" as long as it can."""
        self._condition = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="dflash-engine", daemon=True)
        self._thread.start()

    def find(self, number: int) -> Job | None:
        """The job of a request, while it waits or runs."""
        with self._condition:
            jobs = (*self._waiting, self.running)
            return next((one for one in jobs if one is not None and one.request.number == number), None)

    @property
    def waiting(self) -> int:
        """Jobs that wait and were not cancelled."""
        with self._condition:
            return self._count()

    def submit(self, job: Job) -> int:
        """Queue a job; how many are before it. Raises RequestError where too many wait, or none is taken any more."""
        with self._condition:
            if self.ending:
                raise ending()
            if self.broken:
                raise RequestError(503, self.broken, code="engine_failed", headers={"retry-after": "60"})
            if self._count() >= self._queue + (self.running is None):
                raise busy(
                    f"{self._queue} requests wait already, the limit of this server (--queue); send it again",
                    "queue_full",
                )
            before = self._count() + (self.running is not None)
            self._waiting.append(job)
            self._condition.notify()
            return before

    def place(self, job: Job) -> tuple[int, int]:
        """The place of a job in the queue, from 1, and how many wait; 0 for one that does not wait."""
        with self._condition:
            waiting = [one for one in self._waiting if not one.cancelled]
            return (waiting.index(job) + 1 if job in waiting else 0), len(waiting)

    def end(self) -> None:
        """Cancel the running job and refuse those that wait."""
        with self._condition:
            self.ending = True
            waiting, running = list(self._waiting), self.running
            self._waiting.clear()
            self._condition.notify()
        for job in waiting:
            job.updates.put(Failed(ending()))
        if running is not None:
            running.updates.put(Failed(ending()))
            running.cancel()

    def join(self, seconds: float) -> bool:
        """Wait until the thread has ended after `end`; False if it has not."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _count(self) -> int:
        return sum(not job.cancelled for job in self._waiting)

    def _work(self) -> None:
        while (job := self._next()) is not None:
            self._answer(job)
            with self._condition:
                self.running = None

    def _answer(self, job: Job) -> None:
        client = job.request.client.partition(" ")[0] or "another program"
        with self._decoder.using(f"a request of {client}", lambda: job.cancelled) as mine:
            if mine:
                self._run(job)

    def _run(self, job: Job) -> None:
        try:
            last = job.run(self._engine)
        except Exception as error:  # of the program itself; without this thread nobody would be answered again
            last = Failed(error)
            job.updates.put(last)
        if isinstance(last, Failed) and not isinstance(last.error, GrammarError):
            LOG.error("an answer failed", exc_info=last.error)
            if isinstance(last.error, KernelError) and last.error.reload:
                self.broken = f"{last.error}; start the server again"
        self._ended(job, last)

    def _next(self) -> Job | None:
        with self._condition:
            self._condition.wait_for(lambda: self._waiting or self.ending)
            self.running = self._waiting.popleft() if self._waiting else None
            return self.running
