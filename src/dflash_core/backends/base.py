"""The interface between models and machines: a sequence as decoders see it, and `opened.Session`, `Machine`, `Target`.

Implementations are siblings, backends/cpu and backends/cuda; nothing outside of them names one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dflash_core.attention_window import AttentionWindow
from dflash_core.constraints.base import Constraint
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.knobs import Knobs
from dflash_core.log_probs import LogProbs
from dflash_core.policy.base import Policy
from dflash_core.snapshots.base import State
from dflash_core.tree import Candidates

PREFILL_CHUNK = 256  # prompt tokens that a backend reads at once unless it says otherwise
MAX_CHECKPOINTS = 4  # of one session
# float32 rows: logits (n, vocab), or hidden states.
Logits = npt.NDArray[np.float32]
Checkpoint = State  # a committed state that can be returned to


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """How an answer is decoded. `policy`: what picks each step; without one only the knobs do. `constraint`: what the
    answer conforms to; then a stop token ends it whatever the knobs say. `log_probs`: records its log-probabilities."""

    knobs: Knobs
    stop_ids: frozenset[int]
    context_length: int
    policy: Policy | None = None
    constraint: Constraint | None = None
    log_probs: LogProbs | None = None


class PrefillCancelled(Exception):  # noqa: N818
    """A prompt was cancelled after its first `committed` tokens; the runner always catches this."""

    def __init__(self, committed: int = 0) -> None:
        super().__init__()
        self.committed = committed


class Backend(Protocol):
    """One sequence on one device. `length` positions are committed; everything else happens after them."""

    @property
    def length(self) -> int: ...

    @property
    def capabilities(self) -> Capabilities | None:
        """What the sequence's drafter can do; None without one."""

    def prefill(self, tokens: Sequence[int], cancelled: Callable[[], bool] | None = None) -> Logits:
        """Run and commit tokens; returns the logits (vocab,) after the last.

        A backend that reads many tokens at once calls `cancelled` now and then, and raises PrefillCancelled if it
        returns true.
        """

    def propose(self, root: int, knobs: Knobs, at: int | None = None) -> Candidates:
        """What the drafter proposes after the committed state and `root`, ranked. Raises NumericsError.

        With `at` (0 < at <= length) the drafter sees the first `at` positions only, as it did when they were all that
        was committed. Nothing of the state changes, so a turn can be drafted again from any of its positions.
        """

    def draft(self, root: int, window: int, at: int | None = None) -> Logits:
        """As `propose`, as logits (depths, vocab). Raises ContextError for a drafter that has none."""

    def verify(self, tokens: Sequence[int], parents: Sequence[int]) -> Logits:
        """Run a tree after the committed state; logits (n, vocab) after each node. Commits nothing."""

    def commit(self, path: Sequence[int]) -> None:
        """Keep the nodes `path` of the last verify: the state becomes that of decoding them one by one."""

    def set_attention_window(self, window: AttentionWindow) -> None:
        """What the target's layers of full attention see, of all rows from here on."""
