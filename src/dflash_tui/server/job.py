"""One request in the queue and the engine. The engine's thread sends an update a step to the loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dflash_core.answer import Answer
from dflash_core.constraints.base import Constraint
from dflash_core.engine import Engine
from dflash_core.events import Piece, PrefillEvent
from dflash_core.knobs import Knobs
from dflash_core.log_probs import LogProbs
from dflash_core.messages import Call, Message, arguments_of
from dflash_core.record import End, Line, Start
from dflash_core.text.prompt import Prompt
from dflash_core.text.tokenizer import Tokenizer
from dflash_core.text.tool_calls.answer import AnswerParts, AnswerShape
from dflash_core.text.tool_calls.forms import Form
from dflash_core.text.tool_calls.parts import Part
from dflash_core.turn_stats import TurnReport
from dflash_tui.application.requests import Requests, ServedRequest
from dflash_tui.server.asked import Asked
from dflash_tui.server.drawn_tokens import DrawnTokens
from dflash_tui.server.updates import Ended, Failed, Reading, Recorded, Updates, Why, text_thinking_calls

_WHY: dict[str, Why] = {
    "stop token": "end", "max tokens": "length", "context full": "context", "cancelled": "cancelled", "loop": "length",
}  # fmt: skip
WORDS: dict[Why, str] = {"calls": "calls a tool", "context": "context full", "cancelled": "client left"}
"""What ended an answer, where the list of requests has other words than clients get."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that has been rendered, counted and checked. `form`: how calls of its tools are found in the answer;
    None: all is text. `begun`: the message that the answer goes on with. `answered` is called with the answer as a
    message, its ids, and whether it came to its end."""

    asked: Asked
    prompt: Prompt
    knobs: Knobs
    form: Form | None
    start: Callable[[Prompt, Knobs], Start]
    answered: Callable[[Message, Sequence[int], bool], None]
    constraint: Constraint | None = None
    log_probs: LogProbs | None = None
    begun: Message | None = None


class Job:
    """`updates` is filled from the engine's thread and read in the loop that made the job. `cancel` from any thread.

    The last update is Ended or Failed, unless the job is cancelled while it waits: then there is none.
    """

    def __init__(
        self, prepared: Prepared, request: ServedRequest, requests: Requests, *, streamed: bool, key: int = 0
    ) -> None:
        """`request`: as it is listed in `requests`, where those who watch find its lines. `streamed`: its client gets
        the answer as it comes; without that there is no update but the last. `key`: the number of its client's, 0 for
        none."""
        self.prepared, self.request, self._requests = prepared, request, requests
        self.streamed, self._events, self.key = streamed, streamed and prepared.asked.events, key
        self.updates = Updates(streamed=streamed)
        self.cancelled = False
        self.written = 0
        """Tokens of the answer so far."""
        self._answer: Answer | None = None
        form, asked = prepared.form, prepared.asked
        parser = AnswerParts(form, asked.tools) if form is not None else None
        self._ends = form.stops if form is not None else ()
        self._shape = AnswerShape(asked.stops, parser, parallel=asked.parallel, ends=self._ends)
        self._drawn: DrawnTokens | None = None
        self._made = time.perf_counter()
        self._queue_ms = self._ttft_ms = 0.0
        self._lines: list[Line] = []  # that follow the parts of their step
        self._timings = streamed and asked.timings

    def cancel(self) -> None:
        """End the answer within a step, or skip it when its turn comes."""
        self.cancelled = True
        if self._answer is not None:
            self._answer.stop()

    def change(self, knobs: Knobs) -> None:
        """Use what a running answer can take of these knobs, from the next step on."""
        if self._answer is not None:
            self._answer.change(knobs)

    def answer_now(self) -> None:
        """Close the reasoning and begin the answer."""
        if self._answer is not None:
            self._answer.answer_now()

    def run(self, engine: Engine) -> Ended | Failed:
        """Answer it. On the engine's thread."""
        self._queue_ms = (time.perf_counter() - self._made) * 1e3
        self.request.state = "running"
        answer: Answer | None = None
        last: Ended | Failed
        try:
            prepared, tokenizer = self.prepared, engine.target.tokenizer
            answer = self._answer = Answer(
                engine, tokenizer, prepared.prompt, prepared.knobs, prepared.start, keep=prepared.prompt.keep,
                watchers=(self._line,), on_prefill=self._reads,
                shown=prepared.form.shown if prepared.form is not None else (), constraint=prepared.constraint,
                log_probs=prepared.log_probs, ends=self._ends,
            )  # fmt: skip
            if prepared.log_probs is not None:
                self._drawn = DrawnTokens(tokenizer, prepared.log_probs, prepared.prompt)
            if prepared.begun is not None:
                self._shape.go_on(answer.begun, prepared.begun.thinking, prepared.begun.content)
            if self.cancelled:  # before there was an answer to stop
                answer.stop()
            for piece in answer:
                self._step(piece, answer)
            last = self._ended(answer.report, tokenizer)
        except Exception as error:
            last = Failed(error)
        finally:
            if answer is not None:
                answer.close()
        self._over(last, answer)
        self.updates.put(last)
        return last

    def _line(self, line: Line) -> None:
        self._requests.record(self.request, line)
        if isinstance(line, End):
            cut = line.report is None or line.report.stop != "stop token"
            self._send_parts([*self._shape.push(line.thinking, line.text), *self._shape.finish(cut=cut)])
        if self._events:
            self._lines.append(line)
            if isinstance(line, (Start, End)):
                self._send_lines()

    def _send_lines(self) -> None:
        for line in self._lines:
            self.updates.put(Recorded(line))
        self._lines.clear()

    def _reads(self, done: int, total: int) -> None:
        self.request.prefill = done, total
        if self.streamed:
            self.updates.put(Reading(done, total))

    def _over(self, last: Ended | Failed, answer: Answer | None) -> None:
        why = f"failed: {last.error}" if isinstance(last, Failed) else WORDS.get(last.why, last.why)
        report, record = (answer.report, answer.record) if answer is not None else (None, None)
        self._requests.over(self.request, why, report, record)

    def _step(self, piece: Piece, answer: Answer) -> None:
        event = piece.event
        self.written += len(event.tokens)
        read = event if isinstance(event, PrefillEvent) else None
        if read is not None:
            self._ttft_ms = (time.perf_counter() - self._made) * 1e3
        if self._timings:
            self.updates.figures = answer.stats
        self._send_parts(self._shape.push(piece.thinking, piece.text), read, last=event.stop is not None)
        if self._lines:
            self._send_lines()
        if self._shape.over:
            answer.stop()

    def _send_parts(self, parts: Sequence[Part], read: PrefillEvent | None = None, *, last: bool = False) -> None:
        if self._drawn is not None:
            parts = self._drawn.with_tokens(parts)
        self.updates.step(parts, read, last=last)

    def _ended(self, report: TurnReport | None, tokenizer: Tokenizer) -> Ended:
        ids, shape = report.tokens if report is not None else (), self._shape
        why: Why = _WHY[report.stop] if report is not None else "cancelled"
        if shape.stops.found:
            why = "stop string"
        elif shape.calls and (why == "end" or shape.over):
            why = "calls"
        count = counted(tokenizer, ids, shape.stops.dropped) if shape.stops.found else len(ids)
        if report is not None and not shape.notes:
            self._remember(ids, complete=report.stop == "stop token" and why in ("end", "calls"))
        notes = (*self.prepared.asked.notes, *shape.notes)
        return Ended(report, why, count, shape.stops.found, self._queue_ms, self._ttft_ms, notes)

    def _remember(self, ids: Sequence[int], *, complete: bool) -> None:
        text, thinking, found = text_thinking_calls(self.updates.parts)
        calls = tuple(Call("", name, arguments_of(arguments)) for name, arguments in found)
        self.prepared.answered(Message("assistant", text, thinking, calls=calls), ids, complete)


def counted(tokenizer: Tokenizer, ids: Sequence[int], dropped: int) -> int:
    """How many of `ids` begin before the last `dropped` bytes of their text."""
    read = tokenizer.reader()
    sizes = [len(read((id,))) for id in ids]
    while sizes and sizes[-1] <= dropped:
        dropped -= sizes.pop()
    return len(sizes)
