"""Requests of other programs that the server has accepted, and the lines of their records, for those who watch."""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from dflash_core.record import Line, TurnRecord
    from dflash_core.text.prompt import Prompt
    from dflash_core.turn_stats import TurnReport

LINES = 1_000
"""Lines that a reader may be late by."""
LISTED = 200
"""Requests that are remembered."""
State = Literal["waiting", "running", "over"]


@dataclass(eq=False)
class ServedRequest:
    """A request. `client`: what it says of itself; `model`: the name that it asks for. The server's threads set the
    rest: `prefill` is tokens of the prompt read so far, and of how many; `why` is what ended it; `record` is there for
    the newest requests. `preset`: that of its client. `prompt`: where prompts are stored."""

    number: int
    client: str
    path: str
    model: str
    began: float
    preset: str = ""
    prompt: Prompt | None = None
    state: State = "waiting"
    prefill: tuple[int, int] = (0, 0)
    why: str = ""
    report: TurnReport | None = None
    record: TurnRecord | None = None


class NumberedLine(NamedTuple):
    """A line of a request's record. `number`: of the line, from 1."""

    number: int
    request: ServedRequest
    line: Line


class Requests:
    """Usable from any thread. Writers never wait for readers: a reader that is late loses lines."""

    RECORDS = 20
    """Requests whose whole record is stored, or whose prompt where prompts are."""

    def __init__(self, records: int = RECORDS) -> None:
        """`records`: of how many requests, the newest, somebody may read the whole record."""
        self._records = records
        self.id = secrets.token_hex(4)
        """What the numbers of its lines belong to."""
        self._lock = threading.Lock()
        self._recent: deque[tuple[ServedRequest, Line]] = deque(maxlen=LINES)  # the last has the number `last_line`
        self._requests: deque[ServedRequest] = deque(maxlen=LISTED)
        self._count = 0
        self.last_line = 0  # the number of the newest line; 0 before the first
        self.keeps_prompts = False  # to measure on them: never unless the user has agreed

    @property
    def newest_first(self) -> Sequence[ServedRequest]:
        with self._lock:
            return tuple(reversed(self._requests))

    def keep_prompts(self, keep: bool) -> None:
        """Keep prompts in memory from now on, or none, those of earlier requests included."""
        with self._lock:
            self.keeps_prompts = keep
            if not keep:
                for one in self._requests:
                    one.prompt = None

    def add(self, client: str, path: str, model: str, preset: str = "", prompt: Prompt | None = None) -> ServedRequest:
        with self._lock:
            self._count += 1
            request = ServedRequest(self._count, client, path, model, time.time(), preset)
            self._requests.append(request)
            if self.keeps_prompts:
                request.prompt = prompt
                for old in [one for one in self._requests if one.prompt is not None][: -self.RECORDS]:
                    old.prompt = None
            return request

    def record(self, request: ServedRequest, line: Line) -> None:
        with self._lock:
            self.last_line += 1
            self._recent.append((request, line))

    def over(
        self, request: ServedRequest, why: str, report: TurnReport | None = None, record: TurnRecord | None = None
    ) -> None:
        """It has ended, or its client left while it waited."""
        with self._lock:
            request.state, request.why, request.report, request.record = "over", why, report, record
            with_record = [one for one in self._requests if one.record is not None]
            for old in with_record[: len(with_record) - self._records]:
                old.record = None

    def after(self, number: int) -> tuple[list[NumberedLine], int]:
        """The lines after that of this number, and how many between are lost."""
        with self._lock:
            first = self.last_line - len(self._recent) + 1
            begin = max(first, number + 1)
            late = islice(self._recent, begin - first, None)
            return [NumberedLine(at, *one) for at, one in enumerate(late, begin)], begin - number - 1


def client_name(agent: str) -> str:
    """The name of a program, of what it says of itself: claude-cli of "claude-cli/2.1 (external)"."""
    return agent.partition(" ")[0].partition("/")[0].lower()
