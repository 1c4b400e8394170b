"""What the parsers of all forms share: pieces in, parts out, and what becomes of a call that is none."""

from __future__ import annotations

import abc
from collections.abc import Callable

from dflash_core.text.tool_calls.parts import CallArguments, CallEnd, CallStart, Malformed, Part, Text
from dflash_core.text.tool_calls.reader import Reader, Reading
from dflash_core.text.tool_calls.schemas import Schemas


class BrokenCallError(Exception):
    """What was read is no call; the message is the reason, shown to users."""


class Parser(abc.ABC):
    """Finds the calls in the text of one answer. The parts, joined, do not depend on how the text was cut."""

    def __init__(self, schemas: Schemas) -> None:
        self.schemas, self.reader = schemas, Reader()
        self.calls = 0
        self._parts: list[Part] = []
        self._open: int | None = None  # the call that has begun
        self.cut = False
        self._reading: Reading[None] | None = self.parse()

    @abc.abstractmethod
    def parse(self) -> Reading[None]:
        """Read to the end of the answer."""

    def push(self, text: str) -> list[Part]:
        """The parts that `text` makes certain."""
        if not text:
            return []
        self.reader.put(text)
        return self._read()

    def finish(self, *, cut: bool = False) -> list[Part]:
        """The other parts. `cut`: a limit ended the answer, not the model; a call that had begun stays as it is."""
        self.cut = cut
        self.reader.end()
        return self._read()

    def _read(self) -> list[Part]:
        if self._reading is not None and next(self._reading, self) is self:
            self._reading = None
        parts, self._parts = self._parts, []
        return parts

    def text(self, text: str) -> None:
        """Text of the answer."""
        if text:
            self._parts.append(Text(text))

    def add(self, part: Part) -> None:
        self._parts.append(part)

    def start(self, name: str) -> None:
        """A call begins."""
        if not name.strip():
            raise BrokenCallError("a tool call without a name")
        self._open = self.calls
        self._parts.append(CallStart(self._open, name))

    def arguments(self, text: str) -> None:
        """A piece of the call's arguments."""
        assert self._open is not None, "arguments of no call"
        if text:
            self._parts.append(CallArguments(self._open, text))

    def end(self, *, complete: bool = True) -> None:
        """The call is over."""
        assert self._open is not None, "the end of no call"
        self._parts.append(CallEnd(self._open, complete))
        self.calls += 1
        self._open = None

    @property
    def opened(self) -> bool:
        """Whether a call has begun that is not over."""
        return self._open is not None

    def block(self, before: str, read: Callable[[], Reading[None]], *, certain: bool = True) -> Reading[bool]:
        """Read what may be a call, after the text `before` it, which belongs to it. What is none becomes text, all of
        it that was read; False then. `certain`: it can be nothing else, so the reason becomes a part."""
        self.reader.mark()
        try:
            yield from read()
        except BrokenCallError as broken:
            raw = self.reader.take_back()
            if self._open is not None and self.cut:
                self.end(complete=False)
                return True
            if certain or self._open is not None:
                self._parts.append(Malformed(str(broken), self._open))
            self.calls += self._open is not None
            self._open = None
            self.text(before + raw)
            return False
        self.reader.release()
        return True
