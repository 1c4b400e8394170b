"""The seam between a decoder and the rule that picks what its next step runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dflash_core.events import Choice, EffectiveMode, FoundRow, StepEvent
from dflash_core.knobs import Knobs

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from dflash_core.drafters.text_table import TextTable
    from dflash_core.tree import Candidates, Tree


LATELY = 16
"""Newest tokens that tell how certain the target is: about as many as a block has."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a step really runs, and why it is not something else. `budget`: nodes below the root at most, 0 where none;
    `drafts`: whether the drafter is asked; `drafter`: which, where there are several; `depth`: tokens that it drafts
    where each costs a pass, 0 for what the knobs say."""

    mode: EffectiveMode
    budget: int
    reason: str
    drafts: bool = True
    drafter: str = ""
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """The tree that a step verifies, where a policy builds it itself, and what it knew of it."""

    tree: Tree
    decision: Decision
    choice: Choice | None = None


class Policy(Protocol):
    """Picks what runs. Owned by one runner, called on its thread; the text of an answer never depends on it."""

    def begin(self, ids: Sequence[int], stops: frozenset[int]) -> None:
        """An answer begins: `ids` are the prompt and the first token, which is drawn but not yet run."""

    def next(self, knobs: Knobs) -> Decision:
        """What the next step runs under `knobs`. Asked again for the same step, it answers the same."""

    def weights(self, knobs: Knobs) -> npt.NDArray[np.float64] | None:
        """Of the values by which a device builds its trees (classes, features), see policy/values.py; None: it builds
        what the knobs describe."""

    def copies_from(self, knobs: Knobs) -> TextTable | None:
        """The text that a device's trees by value take successors from; None: none."""

    def plan(self, knobs: Knobs, root: int, drafts: Candidates, deepest: int) -> Plan | None:
        """The tree after `root` for what `next` has said, no node of it below depth `deepest`; None: the best-first
        tree that the knobs describe."""

    def asks_certain(self, knobs: Knobs) -> bool:
        """Whether `observe` is to be told, under `knobs`, how certain the target was: that takes time."""

    def observe(self, step: StepEvent, certain: Sequence[float] = ()) -> None:
        """A step that was decided here is over. Steps come in order, on a card a few of them late. `certain`: the
        target's own probability of each of its last tokens, LATELY at most, where it asks and the host knows."""

    def said(self, tokens: Sequence[int]) -> None:
        """Tokens were put after the answer without a step."""

    def end(self) -> None:
        """The answer is over."""

    def found(self) -> tuple[FoundRow, ...]:
        """What was learned so far, a row per kind of candidate that was tried; may be called at any time."""
