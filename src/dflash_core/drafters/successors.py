"""A sequence's own text as drafts: where each short run of tokens occurred last, and what followed it there.

Runs of one, two and three tokens are indexed by their latest place. From there a match is extended backwards,
which gives the length of the common text.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from dflash_core.prefix import common_prefix

LONGEST = 12  # tokens of a match
MATCH_CLASSES = 5
HIT_RATES = (0.33, 0.46, 0.59, 0.72, 0.85)
"""How often a copied token is right, by the class of its match: priors of chat and code, not of one model."""
_RUNS = (3, 2, 1)
_CLASS_OF_MATCH = (0, 0, 1, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4)


def class_of_match(tokens: int) -> int:
    """The class of a match of 1 to LONGEST tokens: 0..4 for 1, 2, 3-4, 5-8, 9 or more."""
    return _CLASS_OF_MATCH[tokens]


class Successor(NamedTuple):
    """A token that followed the same run before. `match`: its class, 0..4 for 1, 2, 3-4, 5-8, 9 or more tokens in
    common."""

    token: int
    match: int


class Successors:
    """The tokens of one sequence, growing and cut at its end."""

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self.tokens: list[int] = []
        self._last: dict[int, dict[int, int]] = {n: {} for n in _RUNS}  # run -> the place of its last token
        # By the place of the token after a run: the run's previous place. `cut` restores it, `after` goes back by it.
        self._before = {n: array("i") for n in _RUNS}
        self.extend(tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens: the runs at the old end have a successor now."""
        ids = self.tokens
        for token in tokens:
            end = len(ids) - 1
            key = 0
            for n in (1, 2, 3):
                before = -1
                if end + 1 >= n:
                    key |= ids[end - n + 1] << (32 * (n - 1))
                    before = self._last[n].get(key, -1)
                    self._last[n][key] = end
                self._before[n].append(before)
            ids.append(token)

    def cut(self, length: int) -> None:
        ids = self.tokens
        while len(ids) > length:
            ids.pop()
            end = len(ids) - 1
            key = 0
            for n in (1, 2, 3):
                before = self._before[n].pop()
                if end + 1 >= n:
                    key |= ids[end - n + 1] << (32 * (n - 1))
                    if before < 0:
                        del self._last[n][key]
                    else:
                        self._last[n][key] = before

    def become(self, tokens: Sequence[int]) -> None:
        """Become `tokens`: truncate to the common beginning and append the rest."""
        same = common_prefix(self.tokens, tokens)
        self.cut(same)
        self.extend(tokens[same:])

    def tail(self) -> tuple[int, ...]:
        """The newest tokens, as many as a match compares."""
        return tuple(self.tokens[-LONGEST:])

    def after(self, tail: Sequence[int], within: int | None = None) -> Successor | None:
        """What followed the latest place of the longest run (3, 2, 1 tokens) that `tail` ends with.

        `within`: search only the first `within` tokens of the sequence.
        """
        ids = self.tokens
        size = len(tail)
        if not size:
            return None
        limit = len(ids) if within is None else within
        keys = tail[-1], 0, 0
        if size > 2:
            keys = keys[0], keys[0] | tail[-2] << 32, keys[0] | tail[-2] << 32 | tail[-3] << 64
        elif size > 1:
            keys = keys[0], keys[0] | tail[-2] << 32, 0
        for n in _RUNS:
            if size < n:
                continue
            place = self._last[n].get(keys[n - 1], -1)
            while place + 1 >= limit and place >= 0:
                place = self._before[n][place + 1]
            if place < 0:
                continue
            match, longest = n, min(size, LONGEST, place + 1)
            while match < longest and ids[place - match] == tail[-1 - match]:
                match += 1
            return Successor(ids[place + 1], _CLASS_OF_MATCH[match])
        return None
