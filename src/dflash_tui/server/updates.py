"""What the engine's thread sends of an answer: its parts step by step, and how it ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from dflash_core.events import PrefillEvent
from dflash_core.record import Line
from dflash_core.text.tool_calls.parts import CallArguments, CallStart, Part, Text, Thinking, merged
from dflash_core.turn_stats import TurnReport, TurnStats

Why = Literal["end", "length", "context", "stop string", "calls", "cancelled"]


def text_thinking_calls(parts: Iterable[Part]) -> tuple[str, str, list[tuple[str, str]]]:
    """An answer whose text, reasoning and calls are apart; of calls the names and arguments, as JSON text."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[tuple[str, str]] = []
    for part in merged(parts):
        if isinstance(part, Text):
            texts.append(part.text)
        elif isinstance(part, Thinking):
            thoughts.append(part.text)
        elif isinstance(part, CallStart):
            calls.append((part.name, ""))
        elif isinstance(part, CallArguments):
            calls[-1] = (calls[-1][0], part.text)
    return "".join(texts), "".join(thoughts), calls


@dataclass(frozen=True, slots=True)
class Reading:
    """The prompt is being read: tokens done, of how many."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Step:
    """The parts of `count` steps that follow each other, pieces of one kind joined. `read`: the prompt has been read
    with the first. `figures`: those so far, where they are requested."""

    parts: tuple[Part, ...]
    count: int
    read: PrefillEvent | None = None
    figures: TurnStats | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """The answer is over. `tokens`: how many of it count, fewer than were generated where a stop string cut it.
    `report` is None where it was cancelled before its first token."""

    report: TurnReport | None
    why: Why
    tokens: int
    stop_string: str = ""
    queue_ms: float = 0.0
    ttft_ms: float = 0.0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """The engine failed."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Recorded:
    """A line of the answer's record, for a client that asked for them. That of a step follows its parts."""

    line: Line


Update = Recorded | Reading | Step | Ended | Failed


class Updates:
    """A queue from the engine's thread to a loop. A loop that sleeps is woken once for all that has come since it
    looked, one that gathers only for the end of the answer: at thousands of steps a second each waking would cost the
    engine more than a step. What a step brings is added to what there is, and its update is made in the loop."""

    def __init__(self, *, streamed: bool) -> None:
        """In the loop that will read it. `streamed`: else nothing of a step is passed on."""
        self.parts: list[Part] = []
        """All so far of the answer."""
        self.figures: TurnStats | None = None
        """Those so far, where they are requested."""
        self._loop, self._streamed = asyncio.get_running_loop(), streamed
        # With how many parts are before them; a prompt that has been read comes before the parts of its step.
        self._others: deque[tuple[int, Update | PrefillEvent]] = deque()
        self._read: PrefillEvent | None = None  # until it is passed on, in the loop
        self._steps = self._passed_steps = self._passed = 0  # steps; those and the parts that were passed on
        self._ready = asyncio.Event()
        self._sleeps = self._over = False

    def step(self, parts: Sequence[Part], read: PrefillEvent | None = None, *, last: bool = False) -> None:
        """From the engine's thread: a step's parts. `read`: the prompt has been read with it; `last`: the answer goes
        no further."""
        if read is not None:
            self._others.append((len(self.parts), read))
        elif not parts:
            return
        self.parts += parts
        self._steps += 1
        if self._streamed and (self._sleeps or last):
            self._wake(last=last)

    def put(self, update: Recorded | Reading | Ended | Failed) -> None:
        """What follows the parts so far, from any thread."""
        self._others.append((len(self.parts), update))
        if (last := isinstance(update, (Ended, Failed))) or self._sleeps:
            self._wake(last=last)

    def _wake(self, *, last: bool) -> None:
        self._over |= last
        self._sleeps = False
        with contextlib.suppress(RuntimeError):  # the loop is closed: the server has ended, and nobody reads this
            self._loop.call_soon_threadsafe(self._ready.set)

    async def take(self) -> list[Update]:
        """All that have come, one at least."""
        while True:
            self._ready.clear()
            self._sleeps = True  # first, or what comes between a look and this would wake nobody
            if found := self.now():
                return found
            await self._ready.wait()

    async def gather(self, seconds: float) -> None:
        """Let updates come for a while, or until the answer is over."""
        self._ready.clear()
        if not self._over:
            timer = self._loop.call_later(seconds, self._ready.set)
            await self._ready.wait()
            timer.cancel()

    def now(self) -> list[Update]:
        """All that have come; steps between two others are one."""
        found: list[Update] = []
        for _ in range(len(self._others)):
            until, update = self._others.popleft()
            found += self._joined(until)
            if isinstance(update, PrefillEvent):
                self._read = update
            else:
                found.append(update)
        found += self._joined(len(self.parts))
        self._sleeps = self._sleeps and not found
        return found

    def _joined(self, until: int) -> Iterator[Step]:
        read, steps = self._read, self._steps
        if self._streamed and (until > self._passed or read is not None):
            parts = tuple(merged(self.parts[self._passed : until]))
            yield Step(parts, steps - self._passed_steps, read, self.figures)
            self._passed, self._passed_steps = max(until, self._passed), steps
            if read is not None:
                self._read = None
