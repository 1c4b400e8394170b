"""Recorded steps in place of a decoder, for what everything around it costs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dflash_core.conversation import Conversation
from dflash_core.engine import Engine
from dflash_core.events import Event, PrefillEvent, StepEvent
from dflash_core.knobs import Knobs


@dataclass(frozen=True)
class Took:
    """Seconds of processor time that an answer took from its first token to its last: of the thread that ran it, whose
    name is `thread`, and of all others."""

    thread: str
    own_s: float
    others_s: float


class FedSteps:
    """While it is entered, the engine answers every prompt by the events of one answer, `rate` steps a second. The
    thread sleeps between two, as one that waits for a card does; a step that is late follows at once."""

    def __init__(self, engine: Engine, events: Sequence[Event], rate: float) -> None:
        self._engine, self._events, self._rate = engine, events, rate
        self.took: list[Took] = []

    def __enter__(self) -> FedSteps:
        self._engine.generate = self._generate  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        del self._engine.generate

    def _generate(self, ids: Sequence[int], knobs: Knobs, **_: Any) -> Iterator[Event]:
        read, *steps = self._events
        assert isinstance(read, PrefillEvent)
        yield replace(read, prompt_tokens=len(ids))
        process, own = time.process_time(), time.thread_time()
        due = time.perf_counter()
        for step in steps:
            due += 1 / self._rate
            if (early := due - time.perf_counter()) > 0:
                time.sleep(early)
            yield step
        process, own = time.process_time() - process, time.thread_time() - own
        self.took.append(Took(threading.current_thread().name, own, process - own))


def recorded(engine: Engine, question: str, knobs: Knobs, steps: int) -> list[Event]:
    """The events of an answer; its steps again and again where it has fewer than `steps`."""
    turn = Conversation(engine, engine.target.tokenizer, engine.target.template).ask(question, knobs)
    read, *found = [piece.event for piece in turn]
    inner = [one for one in found if isinstance(one, StepEvent) and one.stop is None]
    last = replace(found[-1], stop="max tokens")
    return [read, *(inner[at % len(inner)] for at in range(steps - 1)), last]
