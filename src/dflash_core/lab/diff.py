"""Compares two texts: which words they share and which they do not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher

from dflash_core.prefix import common_prefix

_WORDS = re.compile(r"\s+|\w+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class DiffSpan:
    """A stretch of both texts: the same words, or the words that differ; either may be empty."""

    a: str
    b: str

    @property
    def same(self) -> bool:
        return self.a == self.b


def diff(a: str, b: str) -> tuple[DiffSpan, ...]:
    """Stretches that make up `a` and `b`, word by word; alternately same and different."""
    return tuple(_stretches(_WORDS.findall(a), _WORDS.findall(b)))


def _stretches(a: list[str], b: list[str]) -> Iterator[DiffSpan]:
    # Equal ends are cut off first: the matcher's time grows with the square of what is left, and texts that begin
    # alike are the rule here.
    head = common_prefix(a, b)
    longest = min(len(a), len(b)) - head
    tail = next((n for n in range(longest) if a[-1 - n] != b[-1 - n]), longest)
    if head:
        yield _stretch(a[:head], b[:head])
    middle_a, middle_b = a[head : len(a) - tail], b[head : len(b) - tail]
    for _, i, j, k, m in SequenceMatcher(None, middle_a, middle_b, autojunk=False).get_opcodes():
        yield _stretch(middle_a[i:j], middle_b[k:m])
    if tail:
        yield _stretch(a[len(a) - tail :], b[len(b) - tail :])


def _stretch(a: list[str], b: list[str]) -> DiffSpan:
    return DiffSpan("".join(a), "".join(b))
