"""What writes an answer in one dialect: the events of a stream, or one object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal, TypeAlias

import msgspec

from dflash_core.events import PrefillEvent
from dflash_core.text.tool_calls.parts import CallArguments, CallEnd, CallStart, Part, Text, Thinking, merged
from dflash_core.turn_stats import TurnStats
from dflash_tui.server.asked import Request
from dflash_tui.server.request_error import RequestError
from dflash_tui.server.updates import Ended, Reading, Step

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
