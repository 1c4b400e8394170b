"""What the engine's thread sends of an answer, and what writes it in one dialect: events of a stream, or an object."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, Literal, TypeAlias, cast

import msgspec

from dflash_core.events import PrefillEvent
from dflash_core.record import Line
from dflash_core.text.tool_calls.parts import CallArguments, CallEnd, CallStart, Part, Text, Thinking, merged
from dflash_core.turn_stats import TurnReport, TurnStats
from dflash_tui.server.asked import Request
from dflash_tui.server.request_error import RequestError

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


Kind = Literal["thinking", "text", "call"]
Piece: TypeAlias = Text | Thinking | CallArguments
"""More of a block."""


def event(data: bytes, name: str = "") -> bytes:
    """One server-sent event."""
    return b"%sdata: %s\n\n" % (f"event: {name}\n".encode() if name else b"", data)


class Writer:
    """Writes an answer as blocks of one kind, one after the other. A dialect says what it writes for each; what its
    last event has of them, or `end` puts into `answer`, is the answer that is not streamed."""

    answer: dict[str, Any]

    def __init__(self, request: Request) -> None:
        self._detail = request.switch("detail")
        self.kind: Kind | None = None  # of the open block
        self._texts: list[str] = []  # of the open block

    def waits(self, place: int, waiting: int, read: Reading | None) -> bytes:
        """The answer has not begun: its place in the queue, 0 once it is its turn, or how much of the prompt is
        read."""
        return b": working\n\n"

    def progress(self, read: Reading) -> bytes:
        """More of the prompt has been read; b"" where the client did not ask for it."""
        return b""

    def begin(self, read: PrefillEvent | None) -> bytes:
        """The prompt has been read; None if it never was."""
        return b""

    def step(self, step: Step) -> bytes:
        """A step's parts."""
        return self.parts(step.parts)

    def parts(self, parts: Sequence[Part]) -> bytes:
        """Those of a step."""
        return b"".join(map(self._part, parts))

    def _part(self, part: Part) -> bytes:
        if isinstance(part, CallStart):
            return self._begin("call", part.name)
        if isinstance(part, (Text, Thinking)):
            kind: Kind = "text" if isinstance(part, Text) else "thinking"
            return (b"" if self.kind == kind else self._begin(kind)) + self._go_on(part)
        if isinstance(part, CallArguments):
            return self._go_on(part)
        if isinstance(part, CallEnd):
            return self.over(cut=not part.complete)
        return self.over(cut=True) if part.index is not None else b""

    def _begin(self, kind: Kind, name: str = "") -> bytes:
        before = self.over()
        self.kind, self._texts = kind, []
        return before + self.open(kind, name)

    def _go_on(self, part: Piece) -> bytes:
        self._texts.append(part.text)
        return self.more(part)

    def over(self, *, cut: bool = False) -> bytes:
        """End the open block, where there is one. `cut`: it did not come to its end."""
        found = b"" if self.kind is None else self.close(self.kind, "".join(self._texts), cut=cut)
        self.kind = None
        return found

    def open(self, kind: Kind, name: str) -> bytes:
        """A block begins; `name`: of the tool that is called."""
        raise NotImplementedError

    def more(self, part: Piece) -> bytes:
        """More of the open block."""
        raise NotImplementedError

    def close(self, kind: Kind, text: str, *, cut: bool) -> bytes:
        """The open block ends; `text`: all of it. `cut`: that is not all that was to come."""
        raise NotImplementedError

    def end(self, ended: Ended) -> bytes:
        """The answer is over."""
        raise NotImplementedError

    def failed(self, refusal: RequestError) -> bytes:
        """The engine failed in mid-answer."""
        # Without a last line, so that nobody takes it for complete.
        return event(msgspec.json.encode(refusal.body("openai", "")))

    def whole(self, parts: Sequence[Part], ended: Ended) -> dict[str, Any]:
        """The answer that is not streamed."""
        self.parts(merged(parts))
        self.end(ended)
        return self.answer

    def figures(self, ended: Ended) -> dict[str, Any]:
        """What each dialect's answer ends with."""
        return _figures(ended, detail=self._detail)


def openai_usage(ended: Ended) -> dict[str, Any]:
    """`usage` of chat completions and completions; all is 0 where there is no first token."""
    stats, answer = (ended.report.stats, ended.tokens) if ended.report is not None else (None, 0)
    prompt = stats.prompt_tokens if stats else 0
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
        "prompt_tokens_details": {"cached_tokens": stats.reused_tokens if stats else 0, "cache_write_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": min(stats.thinking.tokens, answer) if stats else 0,
            "accepted_prediction_tokens": stats.accepted if stats else 0,
            "rejected_prediction_tokens": stats.verified - stats.accepted if stats else 0,
        },
    }


def timings(stats: TurnStats) -> dict[str, Any]:
    """The figures under the names that local model servers use."""
    found = dict[str, Any](stats.timings())
    read, predicted = found["prompt_n"], found["predicted_n"] - 1
    return found | {
        "cache_n": stats.reused_tokens,
        "prompt_per_token_ms": stats.ttft_ms / read if read else 0.0,
        "predicted_per_token_ms": stats.decode_s * 1e3 / predicted if predicted else 0.0,
        "draft_rounds": stats.steps,
        "draft_kind": "+".join(one.kind for one in stats.drafters),
    }


def _figures(ended: Ended, *, detail: bool) -> dict[str, Any]:
    """What each dialect's answer ends with. `timings`, and `dflash`: what ran, why it stopped, how well drafts were
    accepted; `detail` has all figures."""
    report, queue_ms = ended.report, round(ended.queue_ms, 2)
    if report is None:
        return {"dflash": {"stop": "cancelled", "notes": ended.notes, "queue_ms": queue_ms}}
    stats = report.stats
    found: dict[str, Any] = {
        "seed": report.knobs.seed,
        "mode": report.mode,
        "reason": report.reason,
        "stop": "stop string" if ended.why == "stop string" else report.stop,
        "drafter": "+".join(one.kind for one in stats.drafters),
        "kv": stats.kv,
        "queue_ms": queue_ms,
        "ttft_ms": round(ended.ttft_ms, 2),
        "acceptance_length": round(stats.acceptance_length, 4),
        "accept_rate_by_depth": [round(rate, 4) for rate in stats.accept_rate_by_depth],
        "guards": [event.summary for event in report.guards],
        "notes": [*ended.notes, *report.notes],
    }
    if detail:
        found |= {
            "drafted_by_depth": stats.drafted_by_depth,
            "nodes_per_step": stats.nodes,
            "lengths": stats.lengths,
            "stage_ms": {name: round(ms, 4) for name, ms in asdict(stats.stage_ms).items()},
            "knobs": report.knobs.to_dict(),
        }
    return {"dflash": found, "timings": timings(stats)}
