"""The interface between a sequence and its drafter: a `Draft` (draft.py) is an opened or loaded one, a `Drafter` its
state over one sequence. The session that owns the sequence passes every commit to it and truncates both together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from dflash_core.cache_types import CachePair
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.knobs import Knobs
from dflash_core.tree import Candidates

if TYPE_CHECKING:
    from torch import Tensor

    from dflash_core.models.rows import LayerState


class Drafter(Protocol):
    """Proposes tokens after one sequence. A new one is before the first token. `nbytes`: in use now, by component of
    the memory breakdown."""

    @property
    def capabilities(self) -> Capabilities: ...
    @property
    def nbytes(self) -> Mapping[str, int]: ...

    def begin(self, states: Sequence[LayerState] = ()) -> None:
        """Begin a new, empty sequence. `states`: those of the target's layers for it, whose keys and values a drafter
        may read; on a card, a drafter inside the step gets them there."""

    def observe(self, tokens: Sequence[int], hidden: Tensor | None) -> None:
        """`tokens` were committed, in this order. `hidden` (tokens, layers * width): the outputs of the captured layers
        there, concatenated in the order of `capabilities.captured_layers`; None if it needs none."""

    def propose(self, root: int, knobs: Knobs, at: int | None = None) -> Candidates:
        """Ranked tokens for each depth after what was committed and `root`; fewer depths, even none, where it has
        no proposal. Raises NumericsError.

        With `at` it uses only the first `at` committed positions, as if there were no others. The state does not
        change.
        """

    def cut(self, length: int) -> None:
        """Truncate to the first `length` positions of this sequence."""

    def rows(self, begin: int, end: int) -> tuple[Tensor, ...]:
        """Copies of the state of the positions begin..end, each of which depends only on the tokens up to it."""

    def resume(self, begin: int, tokens: Sequence[int], rows: Iterator[Tensor]) -> None:
        """Restore `tokens`, the committed ones from position `begin` on, with the tensors that `rows` returned for
        them."""


@runtime_checkable
class DenseDrafter(Drafter, Protocol):
    """A drafter that gives a probability to every token of the vocabulary."""

    def logits(self, root: int, window: int, at: int | None = None) -> npt.NDArray[np.float32]:
        """Logits (depths, vocab) after `root`; `window`: positions that it sees, 0 for all; `at` as in
        `Drafter.propose`."""


class DraftModel(Protocol):
    """A drafter's own model, as far as plans and descriptions need it. `kind`: its row in drafters/kinds.py."""

    @property
    def kind(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def block_count(self) -> int: ...

    def position_bytes(self, kv: CachePair) -> int:
        """Bytes that it stores per position, with keys and values of the types `kv`."""
