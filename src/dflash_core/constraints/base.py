"""The interface between a decoder and what an answer must conform to.

A constrained answer is defined by its draws: each is the usual one, from logits where the ids that the constraint rules
out are -inf before anything else is applied. Which ids these are depends only on the tokens before. So a draw does not
depend on how a step was drafted, and trees, chains and plain decoding give the same text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.uint32]
"""(vocab / 32, rounded up, or more): a bit for each id, set where it may come next; id 0 is the lowest of the first."""
Row = npt.NDArray[np.float32]

_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
# (256, 8): what is added to the logits of eight ids, by a byte of a mask. To add is several times as fast as to choose.
_ADDED = np.where(_BITS == 1, np.float32(0), np.float32(-np.inf))
_SET = _BITS.sum(axis=1, dtype=np.uint16)  # bits of a byte


class Constraint(Protocol):
    """The state of one answer. Each call raises GrammarError where the grammar cannot be followed on."""

    def add(self, tokens: Sequence[int]) -> None:
        """The answer continues with `tokens`."""

    def drop(self) -> None:
        """The answer's last token is taken back."""

    def allowed(self, path: Sequence[int]) -> Mask | None:
        """What may come after the answer and `path`; None: anything."""

    def admits(self, path: Sequence[int], token: int) -> bool:
        """Whether `token` may come after the answer and `path`."""

    def forced(self) -> Sequence[int]:
        """The tokens that come next as the grammar leaves no other text; none where they are not known. The model may
        still cut the same text into other tokens, so these are drafts."""


def masked(logits: Row, allowed: Mask | None) -> Row:
    """`logits` (vocab,) without the ids that are not allowed."""
    return logits if allowed is None else logits + _ADDED[allowed.view(np.uint8)].reshape(-1)[: len(logits)]


def allowed_count(mask: Mask) -> int:
    return int(_SET[mask.view(np.uint8)].sum(dtype=np.int64))
