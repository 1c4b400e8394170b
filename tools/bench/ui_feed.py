"""Text for measuring the app: four documents of 3,000 tokens, and a turn that emits one at a fixed rate.

Nothing is decoded here. It serves to measure the app's own loop; reports call such text "fed".
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from dflash_core.events import Piece, PrefillEvent, StageTimes, StepEvent, StepTree, Stop
from dflash_core.knobs import Knobs
from dflash_core.record import TurnRecord
from dflash_core.turn_stats import TurnReport, turn_stats

TOKENS, TOKEN_CHARS = 3_000, 4
RATE = 300  # tokens per second
STEP = 5  # tokens per step: an acceptance length of five
WORDS = tuple("the drafter proposes a block and one pass of the target keeps the longest path that it takes".split())  # noqa: SIM905


def _filled(head: str, line: Callable[[int], str]) -> str:
    """Lines until the document is long enough."""
    parts, length, number = [head], len(head), 0
    while length < TOKENS * TOKEN_CHARS:
        parts.append(line(number))
        length += len(parts[-1])
        number += 1
    return "".join(parts)[: TOKENS * TOKEN_CHARS]


def _words(number: int, count: int) -> str:
    return " ".join(WORDS[(number * 7 + place) % len(WORDS)] for place in range(count))


DOCUMENTS = {
    "prose": _filled("", lambda n: f"{_words(n, 40).capitalize()}, *{WORDS[n % 9]}* and `{WORDS[n % 7]}`.\n\n"),
    "code": _filled("```python\n", lambda n: f"def step_{n}(tree):\n    return tree[{n}] + {n}  # {_words(n, 5)}\n\n"),
    "list": _filled("", lambda n: f"{n + 1}. {_words(n, 14)}\n"),
    "table": _filled("| step | text |\n|---|---|\n", lambda n: f"| {n} | {_words(n, 5)} |\n"),
}

_TREE = StepTree((0,), (-1,), (0,), (1.0,), (1.0,), (0,))


class FedTurn:
    """Emits a text at `rate` tokens per second, in steps of five."""

    record: TurnRecord | None = None

    def __init__(self, text: str, rate: float) -> None:
        self._source, self._rate = text, rate
        self._stopped = threading.Event()
        self.report: TurnReport | None = None
        self.text = ""
        self.thinking = ""
        self.calling = ""
        self.calls = ()

    def stop(self) -> None:
        self._stopped.set()

    def answer_now(self) -> None:
        """The text has no reasoning."""

    def change(self, knobs: Knobs) -> None:
        """The text is fixed, so no knob changes it."""

    def __iter__(self) -> Iterator[Piece]:
        began = time.monotonic()
        prefill = PrefillEvent((0,), 1, 0, 0.0, "plain", "fed, not decoded")
        steps: list[StepEvent] = []
        yield self._piece(prefill, 1, 0.0)
        while len(self.text) < len(self._source) and not self._stopped.is_set():
            due = began + (1 + len(steps) * STEP) / self._rate
            self._stopped.wait(max(due - time.monotonic(), 0.0))
            count = min(STEP, -(-(len(self._source) - len(self.text)) // TOKEN_CHARS))
            length = 1 + len(steps) * STEP + count
            step = StepEvent((0,) * count, _TREE, 0, 0, length, StageTimes(), "plain", "fed, not decoded")
            steps.append(step)
            yield self._piece(step, count, time.monotonic() - began)
        took = time.monotonic() - began
        stats = turn_stats(prefill, steps, took)
        stop: Stop = "cancelled" if self._stopped.is_set() else "stop token"
        self.report = TurnReport(self.text, "", (0,) * stats.tokens, "plain", "fed, not decoded", stop, Knobs(), stats)

    def _piece(self, event: PrefillEvent | StepEvent, tokens: int, at: float) -> Piece:
        start = len(self.text)
        part = self._source[start : start + tokens * TOKEN_CHARS]
        self.text += part
        return Piece(event, part, at=at)
