"""The seam between a sequence and what drafts for it.

A `Draft` is what was loaded, a `Drafter` its state over one sequence. The session that owns the sequence tells the
drafter of every commit and takes it back and forth together with its own checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from dflash_core.drafters.capabilities import Capabilities
from dflash_core.errors import not_finite
from dflash_core.knobs import Knobs
from dflash_core.tree import Candidates, candidates

if TYPE_CHECKING:
    from torch import Tensor

DraftLogits = npt.NDArray[np.float32]
"""float32 (depths, vocab): a row per position below the root."""


class Drafter(Protocol):
    """Proposes tokens behind one sequence. New ones stand before the first token."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def nbytes(self) -> Mapping[str, int]:
        """Bytes held now, by component of the memory breakdown."""

    def begin(self) -> None:
        """Forget everything: another sequence begins."""

    def observe(self, tokens: Sequence[int], hidden: Tensor | None) -> None:
        """`tokens` were committed, in this order. `hidden` (tokens, layers * width): the outputs of the captured layers
        there, concatenated in the order of `capabilities.captured_layers`; None where it asks for none."""

    def propose(self, root: int, knobs: Knobs, at: int | None = None) -> Candidates:
        """Ranked tokens for each depth behind what was committed and `root`; fewer depths, even none, where it has
        nothing to say. Raises NumericsError.

        With `at` it looks at the first `at` committed positions only, as it did when they were all. Changes nothing.
        """

    def checkpoint(self) -> object:
        """What `restore` needs to come back here."""

    def restore(self, checkpoint: object) -> None:
        """Return to a checkpoint of this sequence, at or before what is committed now."""


@runtime_checkable
class DenseDrafter(Drafter, Protocol):
    """A drafter that gives a probability to every token of the vocabulary."""

    def logits(self, root: int, window: int, at: int | None = None) -> DraftLogits:
        """Logits (depths, vocab) behind `root`; `window`: positions that it looks back at, 0 for all; `at` as in
        `Drafter.propose`."""


def ranked(logits: DraftLogits, knobs: Knobs, position: int) -> Candidates:
    """The best tokens of each row of dense draft logits (depths, vocab), drafted behind `position` tokens.

    Raises NumericsError where a row's best is no number; -inf rules a single token out.
    """
    if not np.isfinite(logits.max(axis=-1)).all():
        raise not_finite("drafter", position)
    return candidates(logits, knobs.tree_width, knobs.tree_temperature)
