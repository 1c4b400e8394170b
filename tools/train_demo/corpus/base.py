"""The pieces every generator uses: an exchange, and a seeded source of choices that respects the split."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from .splits import Split, pair_split, split_of

T = TypeVar("T")


@dataclass(frozen=True)
class Exchange:
    """A question, its answer and the short reasoning that a thinking answer shows first."""

    user: str
    answer: str
    thought: str
    family: str = ""


class NothingHeldError(LookupError):
    """A list of templates has no held-out member, so no held-out document can be made from it."""


class Draw:
    """Random choices of one document. Templates and operand pairs come from the document's split only."""

    def __init__(self, seed: int | str, split: Split) -> None:
        self.rng = random.Random(seed)
        self.split = split

    def template(self, family: str, options: Sequence[str], keep: int = 1) -> str:
        """One of `options`, from this split's share of them; `family` keeps equal texts of two tasks apart.

        The first `keep` options are always trained. Raises NothingHeldError where this leaves none to hold out.
        """
        mine = [o for i, o in enumerate(options) if self._split(f"{family}:{o}", i < keep) == self.split]
        if not mine:
            raise NothingHeldError(family)
        return self.rng.choice(mine)

    def allows(self, key: str) -> bool:
        """Whether something named `key` belongs to this document's split."""
        return split_of(key) == self.split

    @staticmethod
    def _split(key: str, kept: bool) -> Split:
        return "train" if kept else split_of(key)

    def one(self, options: Sequence[T]) -> T:
        """One of `options`, whatever the split: for wording that is not what is being tested."""
        return self.rng.choice(options)

    def pair(self, low: int, high: int) -> tuple[int, int]:
        """Two numbers in [low, high] whose pair belongs to this split."""
        while True:
            a, b = self.rng.randint(low, high), self.rng.randint(low, high)
            if pair_split(a, b) == self.split:
                return a, b

    def number(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def say(self, text: str) -> str:
        """`text` as a user may type it: sometimes polite, in lower case, or without the final punctuation."""
        if self.chance(0.08):
            text = self.one(["Please ", "Hey, ", "Hi! ", "Hello, ", "Quick question: ", "Ok, ", "So, "]) + _lower(text)
        elif self.chance(0.06) and text.endswith("?"):
            text = self.one(["Can you tell me: ", "I wonder, ", "Tell me, "]) + _lower(text)
        if self.chance(0.2):
            text = _lower(text)
        if self.chance(0.15) and text[-1:] in ".?!":
            text = text[:-1]
        elif self.chance(0.04) and text[-1:] in ".":
            text = text[:-1] + ", please."
        return text


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text
