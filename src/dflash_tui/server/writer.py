"""What writes an answer in one dialect: the events of a stream, or one object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from dflash_core.events import PrefillEvent
from dflash_core.text.tool_calls.parts import CallArguments, CallEnd, CallStart, Part, Text, Thinking
from dflash_tui.server.asked import Request
from dflash_tui.server.request_error import RequestError
from dflash_tui.server.updates import Ended, Kind, Reading
from dflash_tui.server.usage import figures


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

    def parts(self, parts: Sequence[Part]) -> bytes:
        """A step's."""
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
    """For streams of blocks, one after the other, each with a beginning and an end."""

    kind: Kind | None = None
    """Of the open block."""

    def part(self, part: Part) -> bytes:
        if isinstance(part, CallStart):
            return self.close() + self._begin("call", part.name)
        if isinstance(part, (Text, Thinking)):
            kind: Kind = "text" if isinstance(part, Text) else "thinking"
            before = b"" if self.kind == kind else self.close() + self._begin(kind)
            return before + self.more(part.text)
        if isinstance(part, CallArguments):
            return self.more(part.text)
        return self.close() if isinstance(part, CallEnd) or part.index is not None else b""

    def _begin(self, kind: Kind, name: str = "") -> bytes:
        self.kind = kind
        return self.open(kind, name)

    def open(self, kind: Kind, name: str) -> bytes:
        """A block begins; `name`: of the tool that is called."""
        raise NotImplementedError

    def more(self, text: str) -> bytes:
        """More of the open block."""
        raise NotImplementedError

    def close(self) -> bytes:
        """The open block ends, where there is one."""
        raise NotImplementedError
