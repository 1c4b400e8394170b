"""A sequence's own text as drafts: where each short run of tokens occurred last, and what followed it there.

Runs of one, two and three tokens are found by a hash, in arrays that a device reads unchanged (the device code is
kernels/ngrams.cuh). From there a match is extended backwards, which gives the length of the common text. Runs that
share a slot replace each other; a slot is verified against the text, so the worst case is a run that is not found: of
32,768 tokens of prose or code that costs 0.2 % of the tokens that are copied rightly.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

LONGEST = 12  # tokens of a match
MATCH_CLASSES = 5
HIT_RATES = (0.33, 0.46, 0.59, 0.72, 0.85)
"""How often a copied token is right, by the class of its match: priors of chat and code, not of one model."""
MIN_CHANCE = 0.01  # of a run of copied tokens
_CLASS_OF_MATCH = (0, 0, 1, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4)
RUNS = 3  # tokens of the longest run in the table
SLOT_BITS = 16
SLOTS = 1 << SLOT_BITS
MULTIPLIER = 0x9E3779B1  # 2^32 over the golden ratio, odd
FEW = 16  # tokens: up to this number, hashing one by one is faster than numpy

Ints = npt.NDArray[np.int32]
Places = tuple[npt.NDArray[np.int64], Ints]


class Successor(NamedTuple):
    """A token that followed the same run before. `match`: its class, 0..4 for 1, 2, 3-4, 5-8, 9 or more tokens in
    common."""

    token: int
    match: int


class NgramTable:
    """The tokens of one sequence, appended and truncated at the end.

    `last`: (RUNS, SLOTS), by the length of a run less one and its hash the place of its last token, -1 for none.
    `cuts`: how often something other than appending happened; a copy must then be made again completely.
    """

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self._buffer = np.empty(1024, np.int32)
        self._length = self.cuts = 0
        self.last = np.full((RUNS, SLOTS), -1, np.int32)
        self._newest: tuple[int, Places] | None = None  # of the length that there is: places from where on
        self.extend(tokens)

    def __len__(self) -> int:
        return self._length

    @property
    def tokens(self) -> Ints:
        return self._buffer[: self._length]

    def extend(self, tokens: Sequence[int]) -> None:
        """Append: the runs at the old end have a successor now."""
        if not len(tokens):
            return
        begin, self._length = self._length, self._length + len(tokens)
        if self._length > len(self._buffer):
            self._buffer = np.concatenate([self._buffer, np.empty(self._length, np.int32)])
        self._buffer[begin : self._length] = tokens
        self._newest = None
        at, ends = self.places(begin)
        self.last.reshape(-1)[at] = ends

    def places(self, begin: int) -> Places:
        """The runs that got a successor since the text had `begin` tokens: their indices in the flattened `last`, and
        the places of their last tokens, ascending for each length."""
        # Requested twice: here, and for the copy on a device.
        if self._newest is None or self._newest[0] != begin:
            few = self._length - begin <= FEW
            self._newest = begin, self._hashed_one_by_one(begin) if few else self._hashed(begin)
        return self._newest[1]

    def _hashed(self, begin: int) -> Places:
        ends = np.arange(max(begin - 1, 0), self._length - 1, dtype=np.int32)
        hashed, at, found = np.zeros(len(ends), np.uint32), list[npt.NDArray[np.int64]](), list[Ints]()
        for run in range(RUNS):
            short = max(run - int(ends[0]), 0) if len(ends) else 0  # no longer runs end at the text's first tokens
            ends, hashed = ends[short:], hashed[short:]
            hashed = (hashed + self._buffer[ends - run].view(np.uint32)) * np.uint32(MULTIPLIER)
            at.append((hashed >> np.uint32(32 - SLOT_BITS)).astype(np.int64) + run * SLOTS)
            found.append(ends)
        return np.concatenate(at), np.concatenate(found)

    def _hashed_one_by_one(self, begin: int) -> Places:
        ids, at, found = self._buffer.data, list[int](), list[int]()
        hashed = dict.fromkeys(range(max(begin - 1, 0), self._length - 1), 0)
        for run in range(RUNS):
            for end in range(max(begin - 1, run), self._length - 1):
                hashed[end] = (hashed[end] + ids[end - run]) * MULTIPLIER & 0xFFFFFFFF
                at.append((hashed[end] >> (32 - SLOT_BITS)) + run * SLOTS)
                found.append(end)
        return np.array(at, np.int64), np.array(found, np.int32)

    def become(self, tokens: Sequence[int]) -> None:
        """Become `tokens`: append the new ones, or start again if the present text is not their beginning."""
        ids = np.asarray(tokens, np.int32)
        if len(ids) < self._length or not np.array_equal(ids[: self._length], self.tokens):
            self._length, self.cuts = 0, self.cuts + 1
            self.last.fill(-1)
        self.extend(ids[self._length :].tolist())

    def tail(self) -> tuple[int, ...]:
        """The newest tokens, as many as a match compares."""
        return tuple(self.tokens[-LONGEST:].tolist())

    def after(self, tail: Sequence[int]) -> Successor | None:
        """The tokens after the latest known place of the longest run (3, 2, 1 tokens) at the end of `tail`."""
        # A memoryview gives Python ints in half the time.
        ids, last, hashed, places = self._buffer.data, self.last.data, 0, list[int]()
        for back in range(min(RUNS, len(tail))):
            hashed = (hashed + tail[-1 - back]) * MULTIPLIER & 0xFFFFFFFF
            places.append(last[back, hashed >> (32 - SLOT_BITS)])
        for run in reversed(range(len(places))):
            place = places[run]
            longest = min(len(tail), LONGEST, place + 1)
            match = 0
            while match < longest and ids[place - match] == tail[-1 - match]:
                match += 1
            if match > run:
                return Successor(ids[place + 1], _CLASS_OF_MATCH[match])
        return None


def copied(
    text: NgramTable, rate: Callable[[int], float], most: int, stops: Container[int] = (), trust: float = 1.0
) -> Iterator[tuple[Successor, float]]:
    """The tokens that followed the end of `text` earlier, one after the other, at most `most` and none after one of
    `stops`, each with the chance that all up to it are right, while that is high enough. `rate`: how often a token is
    right, by the class of its match; `trust`: a factor of the first."""
    tail, chance = text.tail(), trust
    for _ in range(most):
        found = text.after(tail)
        if found is None or (chance := chance * rate(found.match)) < MIN_CHANCE:
            return
        yield found, chance
        if found.token in stops:
            return
        tail = (*tail[1 - LONGEST :], found.token)
