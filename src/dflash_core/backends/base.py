"""What the decoder asks of a backend: the five calls of a step and a way back to an earlier state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from dflash_core.memory import Ledger, Owner

if TYPE_CHECKING:
    from dflash_core.decoder import StepDecoder
    from dflash_core.knobs import Knobs
    from dflash_core.loading import Draft, Target

# float32 rows: logits (n, vocab), or hidden states.
Logits = npt.NDArray[np.float32]


class PrefillCancelled(Exception):  # noqa: N818
    """A prompt was given up between two layers. Everything stands as it did before; it never leaves the runner."""


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

    def prefill(self, tokens: Sequence[int], cancelled: Callable[[], bool] | None = None) -> Logits:
        """Run and commit tokens; returns the logits (vocab,) after the last.

        A backend that reads many tokens at once asks `cancelled` now and then, and raises PrefillCancelled where it
        says so: then nothing was committed.
        """

    def draft(self, root: int, window: int, at: int | None = None) -> Logits:
        """Draft behind the committed state and `root`: logits (block - 1, vocab) of depths 1..

        With `at` (0 < at <= length) the drafter sees the first `at` positions only, as it did when they were all that
        was committed. Nothing of the state changes, so a turn can be drafted again from any of its positions.
        """

    def verify(self, tokens: Sequence[int], parents: Sequence[int]) -> Logits:
        """Run a tree behind the committed state; logits (n, vocab) after each node. Commits nothing."""

    def commit(self, path: Sequence[int]) -> None:
        """Keep the nodes `path` of the last verify: the state becomes that of decoding them one by one."""

    def checkpoint(self) -> Checkpoint:
        """Copy what cannot be rewound."""

    def restore(self, checkpoint: Checkpoint | None) -> None:
        """Return to a checkpoint at or behind the committed length, or to the empty state."""


class Session(Backend, Protocol):
    """A backend that decodes answers, and shows what a drafter is fed with."""

    def decoder(self, knobs: Knobs, stop_ids: frozenset[int], context_length: int) -> StepDecoder:
        """What decodes one answer behind the prompt that was read last. Raises KnobError."""

    def prepare(self, progress: Callable[[str, float], None]) -> None:
        """Make ready what a first answer would have to wait for."""

    @property
    def nbytes(self) -> Mapping[str, int]:
        """Bytes held now, by the owners' names in the ledger."""

    @property
    def taps(self) -> Sequence[int]:
        """The target layers whose outputs a pass records."""

    def features(self) -> Logits:
        """Outputs of the tapped layers (n, taps * hidden) at the rows of the last verify, before its commit."""

    def absorb(self, features: Logits) -> None:
        """Let the drafter see features (n, taps * hidden) of the first n positions, for drafting behind them alone."""


class Machine(Protocol):
    """Where a pair runs: what a sequence takes there, and how much there is."""

    @property
    def name(self) -> str: ...

    @property
    def prefill_chunk(self) -> int:
        """Prompt tokens that one pass reads."""

    @property
    def tree_width(self) -> int:
        """Candidates per draft position that a step can keep, at most."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know of it, a line each."""

    def context_that_fits(self, target: Target, draft: Draft | None) -> int:
        """The context length taken where nobody asks for one."""

    def sequence(
        self, target: Target, draft: Draft | None, context: int, session: Session | None = None
    ) -> tuple[Owner, ...]:
        """What a sequence of full length takes besides the weights: a new one, or `session`, which may have grown."""

    def ledger(self, owners: tuple[Owner, ...], session: Session | None = None) -> Ledger:
        """The owners beside what the machine has now; with a session, what it holds and what runs beside it too."""
