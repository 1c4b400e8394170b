"""Recorded steps in place of a decoder, for what everything around it costs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from dflash_core.engine import Engine
from dflash_core.events import Event, PrefillEvent, StepEvent
from dflash_core.knobs import Knobs

Clocks = tuple[float, float, float]  # processor time of the process and of the thread, and the wall's


class FedSteps:
    """While it is entered, the engine answers every prompt by the events of one answer, `rate` steps a second. The
    thread sleeps between two, as one that waits for a card does; a step that is late follows at once."""

    def __init__(self, engine: Engine, events: Sequence[Event], rate: float) -> None:
        self._engine, self._events, self._rate = engine, events, rate
        self.took: list[Clocks] = []
        """Of each answer, from its first token to its last."""

    @property
    def steps(self) -> int:
        """Of an answer."""
        return len(self._events) - 1

    def __enter__(self) -> FedSteps:
        self._engine.generate = self._generate  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        del self._engine.generate

    def _generate(self, ids: Sequence[int], knobs: Knobs, **_: Any) -> Iterator[Event]:
        read, *steps = self._events
        assert isinstance(read, PrefillEvent)
        yield replace(read, prompt_tokens=len(ids))
        before = _clocks()
        due = time.perf_counter()
        for step in steps:
            due += 1 / self._rate
            if (early := due - time.perf_counter()) > 0:
                time.sleep(early)
            yield step
        process, thread, wall = (now - then for now, then in zip(_clocks(), before))
        self.took.append((process, thread, wall))


def _clocks() -> Clocks:
    return time.process_time(), time.thread_time(), time.perf_counter()


def recorded(engine: Engine, prompt: Sequence[int], knobs: Knobs, steps: int) -> list[Event]:
    """The events of an answer; its steps again and again where it has fewer than `steps`."""
    read, *found = engine.generate(prompt, knobs)
    inner = [one for one in found if isinstance(one, StepEvent) and one.stop is None]
    last = replace(found[-1], stop="max tokens")
    return [read, *(inner[at % len(inner)] for at in range(steps - 1)), last]
