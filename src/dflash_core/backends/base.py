"""What the decoder asks of a backend: the five calls of a step and a way back to an earlier state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]


class Checkpoint(Protocol):
    """A committed state that can be returned to; `length` positions. Opaque but for its size."""

    length: int

    @property
    def nbytes(self) -> int: ...


class Backend(Protocol):
    """One sequence on one device. `length` positions are committed; everything else happens behind them."""

    @property
    def length(self) -> int: ...

    @property
    def draft_block(self) -> int:
        """Block length of the drafter, the anchor included; 0 without a drafter."""

    def prefill(self, tokens: Sequence[int]) -> Logits:
        """Run and commit tokens; returns the logits (vocab,) after the last."""

    def draft(self, root: int, window: int) -> Logits:
        """Draft behind the committed state and `root`: logits (block - 1, vocab) of depths 1.."""

    def verify(self, tokens: Sequence[int], parents: Sequence[int]) -> Logits:
        """Run a tree behind the committed state; logits (n, vocab) after each node. Commits nothing."""

    def commit(self, path: Sequence[int]) -> None:
        """Keep the nodes `path` of the last verify: the state becomes that of decoding them one by one."""

    def checkpoint(self) -> Checkpoint:
        """Copy what cannot be rewound."""

    def restore(self, checkpoint: Checkpoint | None) -> None:
        """Return to a checkpoint at or behind the committed length, or to the empty state."""
