"""Long texts as a few words: `[pasted 1: 10MB]` stands in the prompt for a text that is kept whole.

An editor lays out all of its text, some of it at every key: 10 MB in one line took seconds each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from dflash_tui.text.bars import short

LIMIT = 64_000  # characters that are laid out as they are
SMALL = 2_000  # a shorter text never becomes words
ENDS = 200  # characters of the first and the last line that stay to be read, at most
KEPT = 8  # texts that have left the prompt and may come back to it


class Pasted:
    """The long texts of one prompt."""

    def __init__(self) -> None:
        self.texts: Mapping[str, str] = {}  # by the words that stand for them; another one with every change
        self._count = 0
        self._words = _any_of(())

    def taken(self, text: str, beside: int) -> str:
        """What the prompt gets for text that is pasted into it; `beside`: characters that it has already."""
        return text if len(text) + beside <= LIMIT or len(text) <= SMALL else self.put(text)

    def shown(self, text: str) -> str:
        """What the prompt has when this is all of its text: what was pasted by its words, or the ends of it.

        `whole` gives the text again.
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
        """Words for a text. Its tokens stand beside the context, once they are counted."""
        self._count += 1
        words = f"[pasted {self._count}: {short(len(text.encode(errors='replace')))}B]"
        self._set({**self.texts, words: text})
        return words

    def whole(self, shown: str) -> str:
        """As `whole` does."""
        return whole(shown, self.texts)

    def places(self, line: str) -> Iterator[tuple[int, int]]:
        """Where in a line such words stand: their first column, and the one after their last."""
        return (words.span() for words in self._words.finditer(line))

    def keep(self, shown: str) -> None:
        """Nothing else can bring words back now but this text, or a message that was sent lately."""
        old = [words for words in self.texts if words not in shown][:-KEPT]
        if old:
            self._set({words: text for words, text in self.texts.items() if words not in old})

    def _set(self, texts: Mapping[str, str]) -> None:
        self.texts = texts
        self._words = _any_of(texts)


def whole(shown: str, texts: Mapping[str, str]) -> str:
    """The text itself in the place of all words that stand for one."""
    return _any_of(texts).sub(lambda words: texts[words[0]], shown)


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, texts)) or r"(?!)")


def ends(text: str) -> tuple[str, str, str]:
    """A long text as its first words, the rest, and its last words: a line of each at most."""
    head = re.match(rf"[^\n]{{0,{ENDS}}}\s|", text)
    tail = re.search(rf"\s[^\n]{{0,{ENDS}}}\Z|\Z", text[-ENDS:])
    assert head is not None
    assert tail is not None
    first, last = len(head[0]), len(text) - len(tail[0])
    return text[:first], text[first:last], text[last:]


def clipped(text: str) -> tuple[str, str, str]:
    """A text to look at: where it is long, its first words, how much is left out, and its last words."""
    if len(text) <= LIMIT:
        return text, "", ""
    head, middle, tail = ends(text)
    return head, f"[{short(len(middle.encode(errors='replace')))}B more]", tail
