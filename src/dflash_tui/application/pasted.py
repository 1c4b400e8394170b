"""Placeholders for long texts: `[pasted 1: 10MB]` in the prompt represents the whole text.

An editor lays out all of its text, some of it at every key: with 10 MB in one line each key took seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from dflash_tui.application.amounts import short

LIMIT = 64_000  # most characters that are laid out unchanged
SMALL = 2_000  # a shorter text never gets a placeholder
ENDS = 200  # most characters of the first and the last line that stay readable
MAX_REMOVED = 8  # texts that have left the prompt and may return to it


class Pasted:
    """The long texts of one prompt."""

    def __init__(self) -> None:
        self.texts: Mapping[str, str] = {}  # by placeholder; replaced by a new mapping at every change
        self._count = 0
        self._words = _any_of(())

    def taken(self, text: str, beside: int) -> str:
        """What to insert for a pasted text: itself or a placeholder. `beside`: characters already in the prompt."""
        return text if len(text) + beside <= LIMIT or len(text) <= SMALL else self.put(text)

    def shown(self, text: str) -> str:
        """The form of a whole text in the prompt: with placeholders for pasted parts, or only its ends readable.

        `whole` restores the text.
        """
        if len(text) <= LIMIT:
            return text
        known = text
        for words, one in sorted(self.texts.items(), key=lambda item: -len(item[1])):
            known = known.replace(one, words)
        if len(known) <= LIMIT and self.whole(known) == text:
            return known
        head, middle, tail = ends(text)
        return f"{head}{self.put(middle)}{tail}"

    def put(self, text: str) -> str:
        """Add a text and return its placeholder. The context gauge shows its tokens once they are counted."""
        self._count += 1
        words = f"[pasted {self._count}: {short(len(text.encode(errors='replace')))}B]"
        self._set({**self.texts, words: text})
        return words

    def whole(self, shown: str) -> str:
        """As `whole` does."""
        return whole(shown, self.texts)

    def places(self, line: str) -> Iterator[tuple[int, int]]:
        """The placeholders in a line: the first column of each, and the one after its last."""
        return (words.span() for words in self._words.finditer(line))

    def keep(self, shown: str) -> None:
        """Forget texts whose placeholders are neither in this text nor in recently sent messages."""
        old = [words for words in self.texts if words not in shown][:-MAX_REMOVED]
        if old:
            self._set({words: text for words, text in self.texts.items() if words not in old})

    def _set(self, texts: Mapping[str, str]) -> None:
        self.texts = texts
        self._words = _any_of(texts)


def whole(shown: str, texts: Mapping[str, str]) -> str:
    return _any_of(texts).sub(lambda words: texts[words[0]], shown)


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, texts)) or r"(?!)")


def ends(text: str) -> tuple[str, str, str]:
    """Split a long text into its first words, the rest, and its last words; the ends are at most a line each."""
    head = re.match(rf"[^\n]{{0,{ENDS}}}\s|", text)
    tail = re.search(rf"\s[^\n]{{0,{ENDS}}}\Z|\Z", text[-ENDS:])
    assert head is not None
    assert tail is not None
    first, last = len(head[0]), len(text) - len(tail[0])
    return text[:first], text[first:last], text[last:]


def clipped(text: str) -> tuple[str, str, str]:
    """A text for display: if long, its first words, the size of what is left out, and its last words."""
    if len(text) <= LIMIT:
        return text, "", ""
    head, middle, tail = ends(text)
    return head, f"[{short(len(middle.encode(errors='replace')))}B more]", tail
