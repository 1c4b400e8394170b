"""Reads text that arrives in pieces, for parsers that are written as if all of it were there.

A parser is a generator: it yields wherever it needs more text than there is, and is resumed when there is more. What
it reads does not depend on where the text was cut.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

T = TypeVar("T")
Reading = Generator[None, None, T]
"""What a step of a parser is: it yields for more text, and returns a T."""


class Reader:
    """The text that has arrived and was not read yet."""

    def __init__(self) -> None:
        self._text, self._at = "", 0
        self.ended = False
        self._mark: int | None = None

    def put(self, text: str) -> None:
        """More text has arrived."""
        begin = self._at if self._mark is None else self._mark
        self._text = self._text[begin:] + text
        self._at -= begin
        self._mark = None if self._mark is None else 0

    def end(self) -> None:
        """No more text will arrive."""
        self.ended = True

    def mark(self) -> None:
        """From here on what is read can be read again."""
        self._mark = self._at

    def release(self) -> None:
        """What was read need not be read again."""
        self._mark = None

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
        """Whether `text` comes next."""
        for count in range(1, len(text) + 1):  # a first character decides without waiting for the others
            if (yield from self.peek(count)) != text[:count]:
                return False
        return True

    def skip(self, text: str) -> Reading[bool]:
        """Read `text` if it comes next; reads nothing otherwise."""
        found = yield from self.comes(text)
        self._at += len(text) if found else 0
        return found

    def space(self) -> Reading[str]:
        """Read white space."""
        begun = ""
        while (character := (yield from self.peek(1))) and character.isspace():
            begun += character
            self._at += 1
        return begun

    def until(self, ends: tuple[str, ...], emit: Callable[[str], None], trailing: str = "") -> Reading[tuple[str, str]]:
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


def partial_match_length(text: str, ends: Sequence[str]) -> int:
    """How many characters at the end of `text` may be the beginning of one of `ends`."""
    begins = range(max(len(text) - max(map(len, ends), default=0) + 1, 0), len(text))
    return len(text) - next((n for n in begins if any(end.startswith(text[n:]) for end in ends)), len(text))
