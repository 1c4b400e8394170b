"""An engine that answers with prepared texts, and conversations with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

from text_data import IM_END, qwen, tiny

from dflash_core.conversation import Conversation
from dflash_core.events import Event, PrefillEvent, StageTimes, StepEvent, StepTree, Stop
from dflash_core.guards.turn import TurnGuard
from dflash_core.knobs import Knobs
from dflash_core.text.template import ChatTemplate
from dflash_core.turn_stats import FoundRow

TINY = tiny()
KNOBS = Knobs(thinking=False, seed=0)
THINKING = Knobs(thinking=True)
CHATML = ChatTemplate(None)
TREE = StepTree((0,), (-1,), (0,), (1.0,), (1.0,), (0,))


class FakeEngine:
    """Answers with prepared texts, a few ids per step; an exception among them is raised when its time comes."""

    def __init__(self, *answers: str | list[str | Exception], width: int = 3, context_length: int = 4096) -> None:
        self.answers = list(answers)
        self.width = width
        self.context_length = context_length
        self.calls: list[tuple[list[int], Knobs, list[int]]] = []
        self.cancelled = threading.Event()
        self.on_step: Callable[[int], None] = lambda step: None
        self.closed = 0

    drafter_notes = ()

    def cancel(self) -> None:
        self.cancelled.set()

    def learned(self) -> tuple[FoundRow, ...]:
        return (FoundRow("first choice", len(self.calls), 0.9, 0.8, 0.7),)

    def generate(
        self,
        ids: Sequence[int],
        knobs: Knobs,
        *,
        keep: Sequence[int] = (),
        on_prefill: Callable[[int, int], None] | None = None,
        guard: TurnGuard | None = None,
    ) -> Iterator[Event]:
        self.cancelled.clear()
        self.calls.append((list(ids), knobs, list(keep)))
        answer = self.answers.pop(0)
        try:
            yield from self._events([answer] if isinstance(answer, str) else answer, len(ids), on_prefill)
        finally:
            self.closed += 1

    def _events(
        self, parts: Sequence[str | Exception], prompt: int, on_prefill: Callable[[int, int], None] | None
    ) -> Iterator[Event]:
        if on_prefill is not None:
            on_prefill(prompt, prompt)
        steps: list[tuple[int, ...] | Exception] = []
        for part in parts:
            if isinstance(part, Exception):
                steps.append(part)
                continue
            ids = TINY.encode(part)
            first = [] if steps else [(ids.pop(0),)] if ids else []
            steps += first + [tuple(ids[n : n + self.width]) for n in range(0, len(ids), self.width)]
        if not (steps and isinstance(steps[-1], Exception)):
            steps.append((IM_END,))
        for number, step in enumerate(steps):
            if isinstance(step, Exception):
                raise step
            self.on_step(number)
            stop: Stop | None = "stop token" if step[-1] == IM_END else None
            stop = "cancelled" if self.cancelled.is_set() else stop
            if number == 0:
                yield PrefillEvent(step, prompt, 2, 5.0, "tree", "as asked", stop)
            else:
                yield StepEvent(step, TREE, 4, len(step) - 1, 9, StageTimes(), "tree", "as asked", stop)
            if stop is not None:
                return


def start(
    *answers: str | list[str | Exception], template: ChatTemplate | None = None, system: str = ""
) -> Conversation:
    return Conversation(FakeEngine(*answers), TINY, template or qwen(), system)


def engine_of(conversation: Conversation) -> FakeEngine:
    assert isinstance(conversation.engine, FakeEngine)
    return conversation.engine


def contents(conversation: Conversation) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in conversation.messages]
