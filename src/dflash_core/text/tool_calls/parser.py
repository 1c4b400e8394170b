"""What the parsers of all forms share: pieces in, parts out, and what becomes of a call that is none.

A parser is a generator, written as if all of the text were there: it yields wherever it needs more, and is resumed when
there is more. What it reads does not depend on where the text was cut.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Generator
from typing import TypeVar

from dflash_core.text.thinking import partial_match_length
from dflash_core.text.tool_calls.parts import CallArguments, CallEnd, CallStart, Malformed, Part, Text
from dflash_core.text.tool_calls.schemas import Schemas

T = TypeVar("T")
Reading = Generator[None, None, T]
"""What a step of a parser is: it yields for more text, and returns a T."""
Emit = Callable[[str], None]
SPACE = " \n\r\t"


class BrokenCallError(Exception):
    """What was read is no call; the message is the reason, shown to users."""


class EndedCallError(BrokenCallError):
    """The text ended within a call."""

    def __init__(self) -> None:
        super().__init__("the answer ended within a tool call")


class Reader:
    """The text that has arrived and was not read yet; all there is if it is given here."""

    def __init__(self, text: str = "") -> None:
        self._text, self._at = text, 0
        self.ended = bool(text)
        self._mark: int | None = None

    def put(self, text: str) -> None:
        begin = self._at if self._mark is None else self._mark
        self._text = self._text[begin:] + text
        self._at -= begin
        self._mark = None if self._mark is None else 0

    def mark(self) -> None:
        """Remember what is read from here on, for `take_back`."""
        self._mark = self._at

    def take_back(self) -> str:
        """What was read since the mark, which is released; nothing is read again."""
        assert self._mark is not None, "no mark"
        text, self._mark = self._text[self._mark : self._at], None
        return text

    def peek(self, count: int) -> Reading[str]:
        """The next `count` characters, fewer only at the end."""
        while len(self._text) - self._at < count and not self.ended:
            yield
        return self._text[self._at : self._at + count]

    def take(self, count: int) -> Reading[str]:
        """Read `count` characters, fewer only at the end."""
        text = yield from self.peek(count)
        self._at += len(text)
        return text

    def comes(self, text: str) -> Reading[bool]:
        for count in range(1, len(text) + 1):  # a first character decides without waiting for the others
            if (yield from self.peek(count)) != text[:count]:
                return False
        return True

    def skip(self, text: str) -> Reading[bool]:
        """Read `text` if it comes next; reads nothing otherwise."""
        found = yield from self.comes(text)
        self._at += len(text) if found else 0
        return found

    def expect(self, text: str) -> Reading[None]:
        """Read `text`. Raises BrokenCallError where something else comes."""
        if not (yield from self.skip(text)):
            found = yield from self.peek(12)
            if text.startswith(found):
                raise EndedCallError
            raise BrokenCallError(f"a tool call has {found!r}, expected {text!r}")

    def space(self) -> Reading[str]:
        begun = ""
        while (character := (yield from self.peek(1))) and character.isspace():
            begun += character
            self._at += 1
        return begun

    def up_to(self, ends: tuple[str, ...], emit: Emit) -> Reading[str]:
        """As `until` within a call, which goes on after the end that is found. Raises BrokenCallError."""
        end, _ = yield from self.until(ends, emit)
        if not end:
            raise EndedCallError
        return end

    def until(self, ends: tuple[str, ...], emit: Emit, trailing: str = "") -> Reading[tuple[str, str]]:
        """Pass on text up to the first of `ends`, which is not read, as it arrives. Returns the end that was found, ""
        at the end of the text, and the white space before it, which is not passed on: characters of `trailing`. None
        of `ends` occurs in another."""
        spaces = ""
        while True:
            rest = self._text[self._at :]
            found = [(place, end) for end in ends if (place := rest.find(end)) >= 0]
            sure, end = min(found, default=(len(rest), ""))
            if not end and not self.ended:
                sure -= partial_match_length(rest, ends)
            body = rest[:sure]
            shown = body.rstrip(trailing) if trailing else body
            if shown:
                emit(spaces + shown)
                spaces = ""
            spaces += body[len(shown) :]
            self._at += sure
            if end or self.ended:
                return end, spaces
            yield

    @property
    def rest(self) -> str:
        """All that has arrived and was not read."""
        return self._text[self._at :]


def collected(read: Callable[[Emit], Reading[object]]) -> Reading[str]:
    """What `read` passes on, as one text."""
    parts: list[str] = []
    yield from read(parts.append)
    return "".join(parts)


def members(reader: Reader, ends: str, member: Callable[[int], Reading[None]]) -> Reading[None]:
    """Read an object or array: what it begins and ends with, and members with commas between them. `member` reads one,
    given how many there were before it."""
    index, end = 0, ends[1]
    yield from reader.expect(ends[0])
    while True:
        yield from reader.space()
        if not index and (yield from reader.skip(end)):
            return
        yield from member(index)
        index += 1
        yield from reader.space()
        if (yield from reader.skip(end)):
            return
        yield from reader.expect(",")


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
    def parse(self) -> Reading[None]: ...

    def push(self, text: str) -> list[Part]:
        """The parts that `text` makes certain."""
        if not text:
            return []
        self.reader.put(text)
        return self._read()

    def finish(self, *, cut: bool = False) -> list[Part]:
        """The other parts. `cut`: a limit ended the answer, not the model; a call that had begun stays as it is, and
        the beginning of one without its whole name goes."""
        self.cut = cut
        self.reader.ended = True
        return self._read()

    def _read(self) -> list[Part]:
        if self._reading is not None and next(self._reading, self) is self:
            self._reading = None
        parts, self._parts = self._parts, []
        return parts

    def add(self, part: Part) -> None:
        self._parts.append(part)

    def text(self, text: str) -> None:
        if text:
            self.add(Text(text))

    def start(self, name: str) -> None:
        if not name.strip():
            raise BrokenCallError("a tool call without a name")
        self._open = self.calls
        self.add(CallStart(self.calls, name))

    def arguments(self, text: str) -> None:
        if text:
            self.add(CallArguments(self.calls, text))

    def end(self, *, complete: bool = True) -> None:
        self.add(CallEnd(self.calls, complete))
        self.calls += 1
        self._open = None

    def block(self, before: str, read: Reading[None], *, certain: bool = True) -> Reading[bool]:
        """Read what may be a call, after the text `before` it, which belongs to it. What is none becomes text, all of
        it that was read; False then. `certain`: it can be nothing else, so the reason becomes a part."""
        self.reader.mark()
        try:
            yield from read
        except BrokenCallError as broken:
            raw = self.reader.take_back()
            if self.cut and (self._open is not None or (certain and isinstance(broken, EndedCallError))):
                if self._open is not None:
                    self.end(complete=False)
                yield from self.reader.take(len(self.reader.rest))  # the beginning of what comes next in the call
                return True
            if certain or self._open is not None:
                self.add(Malformed(str(broken), self._open))
            self.calls += self._open is not None
            self._open = None
            self.text(before + raw)
            return False
        self.reader.take_back()
        return True


class TaggedParser(Parser):
    """Text and blocks. White space before a call is layout, and goes; after the last call as well.

    `close`: "" where a block ends by itself. `bare`: what a block without an opening tag begins with, "" for nothing.
    """

    open, close = "<tool_call>", "</tool_call>"
    bare = ""

    @abc.abstractmethod
    def read_block(self) -> Reading[None]:
        """Read one block, from what it begins with. Raises BrokenCallError."""

    def accepts(self, begin: str, before: str) -> Reading[bool]:
        """Whether a block may begin here: the text `before` it ends so."""
        yield from ()
        return True

    def parse(self) -> Reading[None]:
        line = ""  # the end of the text so far
        after_call = False

        def emit(text: str) -> None:
            nonlocal line, after_call
            line, after_call = text[-1:], False
            self.text(text)

        ends = tuple(filter(None, (self.open, self.close, self.bare)))
        while True:
            begin, space = yield from self.reader.until(ends, emit, SPACE)
            if not begin:
                self.text("" if after_call else space)
                return
            if begin == self.close and after_call:  # closed twice
                yield from self.reader.take(len(begin))
            elif begin != self.close and (yield from self.accepts(begin, line + space)):
                after_call = yield from self.block(space, self.read_block())
                line = "" if after_call else ">"
            else:
                emit(space + (yield from self.reader.take(len(begin))))
