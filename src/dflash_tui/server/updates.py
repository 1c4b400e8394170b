"""What the engine's thread sends of an answer: its parts step by step, and how it ended."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, cast

import msgspec

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


class Step(msgspec.Struct, frozen=True):  # made in a third of the time that a dataclass takes, at every step
    """One step's parts. `read`: the prompt has been read with it. `figures`: those so far, where they are requested."""

    parts: tuple[Part, ...]
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


def joined(updates: Iterable[Update]) -> Iterator[Update]:
    """The same updates, with steps that follow each other as one."""
    for kind, run in groupby(updates, type):
        if kind is Step:
            steps = cast("list[Step]", list(run))
            figures = next((step.figures for step in reversed(steps) if step.figures is not None), None)
            yield Step(tuple(merged(part for step in steps for part in step.parts)), steps[0].read, figures)
        else:
            yield from run


class Updates:
    """A queue from the engine's thread to a loop. A loop that sleeps is woken once for all that has come since it
    looked, one that gathers only for the end of the answer: at thousands of steps a second each waking would cost the
    engine more than a step."""

    def __init__(self) -> None:
        """In the loop that will read it."""
        self._loop = asyncio.get_running_loop()
        self._updates: deque[Update] = deque()
        self._ready = asyncio.Event()
        self._sleeps = self._over = False

    def put(self, update: Update, *, last: bool = False) -> None:
        """From any thread. `last`: the answer goes no further. Raises RuntimeError where the loop has ended."""
        self._updates.append(update)
        self._over |= last
        if self._sleeps or last:
            self._sleeps = False
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
        """All that have come."""
        found = [self._updates.popleft() for _ in range(len(self._updates))]
        self._sleeps = self._sleeps and not found
        return found
