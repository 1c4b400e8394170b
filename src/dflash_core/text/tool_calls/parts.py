"""The parts of an answer with tool calls, in the order in which the model wrote them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Self, TypeAlias, cast

import msgspec
from msgspec.structs import replace


class Text(msgspec.Struct, frozen=True):  # made in a third of the time that a dataclass takes, at every step
    """A piece of the answer's text."""

    text: str

    def with_more(self, more: Sequence[Self]) -> Self:
        """With the pieces that follow it."""
        return replace(self, text="".join([self.text, *(one.text for one in more)])) if more else self


class Thinking(msgspec.Struct, frozen=True):
    """A piece of reasoning, from a form that writes it within its own markup."""

    text: str


class CallStart(msgspec.Struct, frozen=True):
    """Call number `index` of the answer begins: its name is complete."""

    index: int
    name: str


class CallArguments(msgspec.Struct, frozen=True):
    """A piece of a call's arguments. All pieces of a call together are the JSON text of an object."""

    index: int
    text: str


class CallEnd(msgspec.Struct, frozen=True):
    """A call is over. `complete`: its arguments are; not so where the answer was cut off in mid-call."""

    index: int
    complete: bool = True


class Malformed(msgspec.Struct, frozen=True):
    """What looked like a call is none, and `reason` says why. Its whole text follows as `Text`. `index`: the call that
    had begun, which does not count; None where none had."""

    reason: str
    index: int | None = None


Part: TypeAlias = Text | Thinking | CallStart | CallArguments | CallEnd | Malformed


def merged(parts: Iterable[Part]) -> list[Part]:
    """The same parts, with pieces that follow each other joined."""
    joined: list[Part] = []
    for _, run in groupby(parts, type):
        first, *more = run
        if isinstance(first, Text):
            joined.append(first.with_more(cast("list[Text]", more)))
        elif isinstance(first, Thinking | CallArguments):
            texts = (one.text for one in cast("list[Thinking]", more))
            joined.append(replace(first, text="".join([first.text, *texts])))
        else:
            joined += (first, *more)
    return joined
