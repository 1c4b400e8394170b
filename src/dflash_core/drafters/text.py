"""The conversation's own text as a drafter: what followed the last tokens the last time they occurred.

No file, no weights, no pass: it runs on the host, beside any target on any device. A proposal is the continuation of
the longest earlier run that ends like the text does now, the latest of equals; one token per depth.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dflash_core.drafters.base import DraftLogits, DraftTarget
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.errors import MismatchError
from dflash_core.knobs import Knobs
from dflash_core.tree import NO_CANDIDATES, Candidates

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from dflash_core.config import DraftConfig
    from dflash_core.formats.weights import WeightFile
    from dflash_core.progress import Progress

KIND = "text"
BLOCK = 16
LEAST, MOST = 2, 12  # tokens that have to match, and how far back a longer match is looked for
LOOKED_AT = 32  # earlier places of one run, the latest first
# A tree temperature softens a distribution over the vocabulary and a width takes more of it; here there is one token.
FOLLOWED = frozenset({"budget", "p_min", "chain_seed"})
CAPABILITIES = Capabilities(KIND, BLOCK, knobs=FOLLOWED)
# How often a copied token is right, by the tokens that matched before it: priors of chat and code, not of one model.
HIT_RATES = ((9, 0.85), (5, 0.72), (3, 0.59), (2, 0.46))


class TextDrafter:
    """Implements `drafters.base.Drafter`. Positions of every pair of tokens are kept, so a look-up costs no scan."""

    capabilities = CAPABILITIES

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._places: dict[tuple[int, int], list[int]] = {}  # of a pair's second token, ascending

    @property
    def nbytes(self) -> Mapping[str, int]:
        return {}  # some bytes a token: nothing beside a cache

    def begin(self) -> None:
        self._ids.clear()
        self._places.clear()

    def observe(self, tokens: Sequence[int], hidden: Tensor | None) -> None:
        for token in tokens:
            if self._ids:
                self._places.setdefault((self._ids[-1], token), []).append(len(self._ids))
            self._ids.append(token)

    def propose(self, root: int, knobs: Knobs, at: int | None = None) -> Candidates:
        end = len(self._ids) if at is None else at
        text = [*self._ids[max(0, end - MOST + 1) : end], root]
        if end < LEAST - 1:
            return NO_CANDIDATES
        places = self._places.get((text[-2], root), [])
        last = bisect_left(places, end)
        best, match = -1, 0
        for place in reversed(places[max(0, last - LOOKED_AT) : last]):
            length = self._match(place, text)
            if length > match:
                best, match = place, length
        if best < 0:
            return NO_CANDIDATES
        # What followed may reach up to the root itself, which is not among the committed ids.
        found = [*self._ids[best + 1 : min(best + BLOCK, end)], *([root] if best + BLOCK > end else [])]
        log_probs = [math.log(_hit_rate(match + depth)) for depth in range(len(found))]
        return Candidates(np.array(found, np.int64)[:, None], np.array(log_probs)[:, None])

    def checkpoint(self) -> object:
        return len(self._ids)

    def restore(self, checkpoint: object) -> None:
        assert isinstance(checkpoint, int), "a checkpoint of another drafter"
        for place in range(len(self._ids) - 1, max(checkpoint, 1) - 1, -1):
            pair = self._ids[place - 1], self._ids[place]
            self._places[pair].pop()
            if not self._places[pair]:
                del self._places[pair]
        del self._ids[checkpoint:]

    def _match(self, place: int, text: Sequence[int]) -> int:
        """Tokens that the ids up to `place` and the end of `text` have in common."""
        longest = min(place + 1, len(text))
        return next((n for n in range(longest) if self._ids[place - n] != text[-1 - n]), longest)


def _hit_rate(matched: int) -> float:
    return next(rate for least, rate in HIT_RATES if matched >= least)


@dataclass(frozen=True, slots=True)
class TextDraft:
    """Implements `drafters.base.Draft`, `HostDraft` and `OpenedDraft`: there is nothing to load."""

    target: DraftTarget
    notes: tuple[str, ...] = ()

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    @property
    def config(self) -> DraftConfig | None:
        return None

    @property
    def file(self) -> WeightFile | None:
        return None

    @property
    def weight_bytes(self) -> int:
        return 0

    def load(self, *, dtype: torch.dtype | None = None, progress: Progress | None = None) -> TextDraft:
        return self

    def drafter(self) -> TextDrafter:
        return TextDrafter()

    def logits(self, features: DraftLogits, anchor: int) -> DraftLogits:
        raise MismatchError("the text drafter copies tokens and has no logits; expected a drafter with a model")


def open_text(path: str, target: DraftTarget) -> TextDraft:
    """The text drafter of any target; it needs no file."""
    return TextDraft(target)
