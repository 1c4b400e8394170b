"""The interface between models and machines: a sequence and a machine as other code sees them, and `opened.Target`.

Implementations are siblings, backends/cpu and backends/cuda; nothing outside of them names one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from dflash_core.attention_window import AttentionWindow
from dflash_core.constraints.base import Constraint
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.events import GuardEvent, StepEvent, Stop
from dflash_core.knobs import Knobs
from dflash_core.log_probs import LogProbs
from dflash_core.memory import Component, MemoryBreakdown
from dflash_core.policy.base import Decision, Policy
from dflash_core.policy.costs import CostTable
from dflash_core.snapshots.base import Resumable, State
from dflash_core.tree import Candidates

if TYPE_CHECKING:
    from dflash_core.progress import Progress

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


class StepDecoder(Protocol):
    """What a runner needs of a decoder: one answer after the prompt that its backend has just read."""

    @property
    def decision(self) -> Decision: ...

    @property
    def answer(self) -> Sequence[int]:
        """The tokens that `first` and `step` have returned."""

    @property
    def ahead(self) -> bool:
        """Whether steps are under way that `step` has not returned yet; `finish` ends them and returns them."""

    @property
    def halted(self) -> bool:
        """Whether the answer has reached the point where it must halt. `go_on` or `say` lifts that."""

    def halt_at(self, tokens: int | None) -> None:
        """Halt where the answer has so many tokens; None: nowhere. Steps under way may not know of it."""

    def go_on(self) -> None:
        """After a halt: `step` decodes on from the newest token."""

    def inject(self, tokens: Sequence[int], event: GuardEvent) -> StepEvent:
        """After a halt: continue with `tokens` instead of the target's own, no further than one that ends the answer.
        The step's `stop` says whether one did."""

    def put(self, token: int) -> Stop | None:
        """After a stop token: the answer has `token` in its place and goes on, unless it ends there too, which is
        returned."""

    def first(self, logits: Logits) -> tuple[int, Stop | None]: ...
    def take(self, knobs: Knobs) -> None: ...
    def step(self) -> StepEvent: ...
    def finish(self) -> Sequence[StepEvent]: ...


class Session(Backend, Resumable, Protocol):
    """A backend that decodes answers, can be stored, and shows the outputs of its target's layers."""

    def in_chunks(self, count: int) -> bool:
        """Whether `prefill` reads so many tokens by other arithmetic than a step's."""

    def decoder(self, options: AnswerOptions) -> StepDecoder:
        """What decodes one answer after the prompt that was read last. Raises KnobError."""

    def prepare(self, progress: Progress, knobs: Knobs) -> None:
        """Prepare what a first answer, with the sampling of `knobs`, would have to wait for."""

    @property
    def nbytes(self) -> Mapping[str, int]:
        """Bytes in use now, by component of the memory breakdown."""

    @property
    def cuts_anywhere(self) -> bool:
        """Whether `cut` succeeds for every length: all layers store all positions."""

    @property
    def max_drafted(self) -> int:
        """The most drafted tokens of a tree: the budgets that memory is reserved for."""

    def leave(self) -> None:
        """End of the session's use: it gives up the memory of its copies."""

    def features(self) -> Logits:
        """Outputs of the captured layers (n, layers * hidden) at the rows of the last verify, before its commit."""


class Machine(Protocol):
    """Where a pair runs: what it can do, and what memory there is. `Target.estimator` predicts a pair's share."""

    @property
    def name(self) -> str: ...

    @property
    def prefill_chunk(self) -> int:
        """Prompt tokens that one pass reads."""

    @property
    def tree_width(self) -> int:
        """Candidates per draft position that a step can keep, at most."""

    def step_costs(self, drafter: Capabilities) -> CostTable | None:
        """How the cost of a step with `drafter` grows with its rows, before any is measured; None where only the
        knobs decide."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know of it, a line each."""

    def learn(self, session: Session, progress: Progress) -> None:
        """Measure what is not known of this machine yet, on an empty sequence that stays empty."""

    def available(self) -> int:
        """Bytes that weights and a sequence may take now."""

    def breakdown(self, components: tuple[Component, ...], session: Session | None = None) -> MemoryBreakdown:
        """The components and what the machine has now; with a session also what it and other processes hold."""
