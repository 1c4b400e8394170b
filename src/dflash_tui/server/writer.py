"""What writes an answer in one dialect: the events of a stream, or one object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from dflash_core.events import PrefillEvent
from dflash_core.text.tool_calls.parts import CallArguments, CallEnd, CallStart, Part, Text, Thinking, merged
from dflash_tui.server.asked import Request
from dflash_tui.server.request_error import RequestError
from dflash_tui.server.updates import Ended, Reading, Step
from dflash_tui.server.usage import figures

Kind = Literal["thinking", "text", "call"]


def event(data: bytes, name: str = "") -> bytes:
    """One server-sent event."""
    return b"%sdata: %s\n\n" % (f"event: {name}\n".encode() if name else b"", data)


class Writer:
    """A dialect overrides what it writes otherwise."""

    def __init__(self, request: Request) -> None:
        self._detail = request.switch("detail")

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
        return b"".join(map(self.part, parts))

    def part(self, part: Part) -> bytes:
        """One of a step."""
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
        raise NotImplementedError

    def figures(self, ended: Ended) -> dict[str, Any]:
        """What each dialect's answer ends with."""
        return figures(ended, detail=self._detail)


class BlockWriter(Writer):
    """For streams of blocks, one after the other, each with a beginning and an end. What the last event has of them is
    the answer that is not streamed."""

    answer: dict[str, Any]

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self.kind: Kind | None = None  # of the open block
        self._texts: list[str] = []  # of the open block

    def part(self, part: Part) -> bytes:
        if isinstance(part, CallStart):
            return self._begin("call", part.name)
        if isinstance(part, (Text, Thinking)):
            kind: Kind = "text" if isinstance(part, Text) else "thinking"
            return (b"" if self.kind == kind else self._begin(kind)) + self._go_on(part.text)
        if isinstance(part, CallArguments):
            return self._go_on(part.text)
        return self.over() if isinstance(part, CallEnd) or part.index is not None else b""

    def _begin(self, kind: Kind, name: str = "") -> bytes:
        before = self.over()
        self.kind, self._texts = kind, []
        return before + self.open(kind, name)

    def _go_on(self, text: str) -> bytes:
        self._texts.append(text)
        return self.more(text)

    def over(self) -> bytes:
        """End the open block, where there is one."""
        found = b"" if self.kind is None else self.close(self.kind, "".join(self._texts))
        self.kind = None
        return found

    def whole(self, parts: Sequence[Part], ended: Ended) -> dict[str, Any]:
        self.parts(merged(parts))
        self.end(ended)
        return self.answer

    def open(self, kind: Kind, name: str) -> bytes:
        """A block begins; `name`: of the tool that is called."""
        raise NotImplementedError

    def more(self, text: str) -> bytes:
        """More of the open block."""
        raise NotImplementedError

    def close(self, kind: Kind, text: str) -> bytes:
        """The open block ends; `text`: all of it."""
        raise NotImplementedError
