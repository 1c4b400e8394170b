"""The interface between a decoder and the policy that decides what its next step runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash_core.errors import NumericsError
from dflash_core.events import Choice, EffectiveMode, StepEvent
from dflash_core.knobs import Knobs
from dflash_core.policy.watch import Watch
from dflash_core.turn_stats import FoundRow

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from dflash_core.drafters.ngram_table import NgramTable
    from dflash_core.tree import Candidates, Tree


LATELY = 16
"""The number of newest tokens by which the target's certainty is measured: about the length of a block."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a step really runs, and the reason. `budget`: the most nodes below the root; `drafts`: whether a drafter is
    used; `drafter`: which one of several; `depth`: tokens to draft where each costs a pass, 0 for the knobs' value."""

    mode: EffectiveMode
    budget: int
    reason: str
    drafts: bool = True
    drafter: str = ""
    depth: int = 0


PLAIN = Decision("plain", 0, "no other drafter is loaded")


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The tree of a step, where the policy builds it itself, and what the policy knew about it."""

    tree: Tree
    decision: Decision
    choice: Choice | None = None


class Policy:
    """Decides what runs. Owned by one runner and called on its thread; the text of an answer never depends on it.

    What is not overridden learns nothing, and leaves every tree to the knobs. `kinds`: of the drafters that are loaded.
    """

    def __init__(self, kinds: Sequence[str] = ()) -> None:
        self.watch = Watch(kinds)

    def begin(self, ids: Sequence[int], stops: frozenset[int]) -> None:
        """An answer begins: `ids` are the prompt and the first token, which is drawn but not yet run."""

    def next(self, knobs: Knobs) -> Decision:
        """What the next step runs under `knobs`. A second call for the same step returns the same."""
        return PLAIN if self.watch.none_left else self._next(knobs)

    def _next(self, knobs: Knobs) -> Decision:
        """`next` where a drafter is left, or none is loaded."""
        raise NotImplementedError

    def weights(self, knobs: Knobs) -> npt.NDArray[np.float64] | None:
        """The weights (classes, features) of the values by which a device builds its trees, see policy/values.py;
        None: it builds the tree that the knobs describe."""
        return None

    def copies_from(self, knobs: Knobs) -> NgramTable | None:
        """The text from which a device's trees by value copy successors, or None."""
        return None

    def plan(self, knobs: Knobs, root: int, drafts: Candidates, deepest: int) -> StepPlan | None:
        """The tree after `root` for the decision of `next`, at most `deepest` deep; None: the best-first tree that the
        knobs describe."""
        return None

    def asks_certain(self, knobs: Knobs) -> bool:
        """Whether `observe` needs the target's certainty under `knobs`, which takes time to compute."""
        return False

    def observe(self, step: StepEvent, certain: Sequence[float] = ()) -> None:
        """A step is over. Steps come in order, on a card a few steps late. `certain`: the target's own probability of
        each of its last tokens, at most LATELY, if requested and known on the host."""
        self.watch.count(step)
        self._observe(step, certain)

    def _observe(self, step: StepEvent, certain: Sequence[float]) -> None:
        """Learn from a step."""

    def spare(self) -> None:
        """Learn what no decision waits for. A decoder that queues steps calls it while the device has steps to run."""

    def failed(self, kind: str, error: NumericsError) -> None:
        """Leave a drafter out from the next decision on; the step under way is decided again."""
        self.watch.leave_out(kind, error)
        self.said(())

    def said(self, tokens: Sequence[int]) -> None:
        """Tokens were appended to the answer without a step."""

    def end(self) -> None:
        """The answer is over."""

    def found(self) -> tuple[FoundRow, ...]:
        """What was learned so far, one row per kind of candidate that was tried; may be called at any time."""
        return ()
