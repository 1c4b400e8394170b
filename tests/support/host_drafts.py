"""Drafters on the host, to test their interface: a toy one, and the ngram drafter with an answer to copy from.

The toy shows what a new kind needs: its own file, and a row in the table that names `open_toy`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dflash_core import Knobs
from dflash_core.backends.opened import Target
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.drafters.draft import Draft
from dflash_core.drafters.ngram import NgramDrafter
from dflash_core.tree import Candidates

TOY = "support.host_drafts:open_toy"
DEPTHS = 3


class ToyDrafter:
    """Offers the newest committed tokens, the newest first, and beside each the token after the root's number.

    `ids` are all tokens that it has observed, so a test can see whether it is at the sequence's position.
    """

    capabilities = Capabilities("toy", DEPTHS + 1, knobs=frozenset({"budget", "p_min", "chain_seed"}))

    def __init__(self) -> None:
        self.ids: list[int] = []

    @property
    def nbytes(self) -> Mapping[str, int]:
        return {"toy ids": 8 * len(self.ids)}

    def begin(self, states: Sequence[object] = ()) -> None:
        self.ids = []

    def observe(self, tokens: Sequence[int], hidden: object) -> None:
        assert hidden is None, "it asks for no captured layers"
        self.ids += tokens

    def propose(self, root: int, knobs: Knobs, at: int | None = None) -> Candidates:
        newest = self.ids[: at if at is None else max(at, 0)][::-1][:DEPTHS]
        tokens = [[token, (token + 1 + root) % 700] for token in newest]
        tokens = [[a, b if b != a else b + 1] for a, b in tokens]
        log_probs = [[-0.2, -1.9] for _ in newest]
        return Candidates(np.array(tokens, np.int64).reshape(-1, 2), np.array(log_probs).reshape(-1, 2))

    def cut(self, length: int) -> None:
        del self.ids[length:]

    def rows(self, begin: int, end: int) -> tuple[Any, ...]:
        return ()

    def resume(self, begin: int, tokens: Sequence[int], rows: object) -> None:
        self.ids += tokens


def open_toy(path: str | Path, target: Target) -> Draft:
    """The toy drafter for any target; it needs no file."""
    return Draft(target, ToyDrafter.capabilities, drafter=lambda kv=None: ToyDrafter())


class PrimedText(NgramDrafter):
    """A text drafter that has read `said` before any sequence begins."""

    def __init__(self, said: Sequence[int]) -> None:
        super().__init__()
        self.said = said
        self.begin()

    def begin(self, states: Sequence[object] = ()) -> None:
        super().begin()
        self.observe(self.said, None)


def primed_draft(target: Target, said: Sequence[int]) -> Draft:
    """The text drafter over a conversation that already contains `said`."""
    return Draft(target, NgramDrafter.capabilities, drafter=lambda kv=None: PrimedText(said))


def spoilt(said: Sequence[int], every: int) -> list[int]:
    """`said` with a wrong token at every `every`-th place, so that copies break off."""
    return [(token + 1) % 700 if place % every == every - 1 else token for place, token in enumerate(said)]
