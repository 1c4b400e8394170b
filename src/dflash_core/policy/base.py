"""The interface between a decoder and the policy that decides what its next step runs, and what every policy does: it
watches the drafters, and runs what the knobs ask for where they decide."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash_core.drafters.capabilities import Capabilities
from dflash_core.errors import NumericsError
from dflash_core.events import Choice, EffectiveMode, StepEvent
from dflash_core.knobs import Knobs
from dflash_core.turn_stats import FoundRow

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from dflash_core.drafters.ngram_table import NgramTable
    from dflash_core.tree import Candidates, Tree

LATELY = 16  # newest tokens by which the target's certainty is measured: about the length of a block
MISSES = 10
"""Drafts without one accepted token after which a drafter is reported as a misfit; the first accepted one takes it
back. One that is right every other time misses its first 10 drafts once in 1,000 times, one that is right one time in
three once in 60. More would be late: `auto` may take some hundred tokens for each draft that is never right."""
COPIES = "ngram"  # copies text and has no model: that nothing repeats itself says nothing about it
SET = "drafting is set"


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

    def drafting(self, knobs: Knobs) -> Knobs:
        """The knobs with which it drafts."""
        return knobs.replace(mtp_depth=self.depth) if self.depth and self.depth != knobs.mtp_depth else knobs


PLAIN = Decision("plain", 0, "no other drafter is loaded")


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The tree of a step, where the policy builds it itself, and what the policy knew about it."""

    tree: Tree
    decision: Decision
    choice: Choice | None = None


class Watch:
    """What steps have shown of drafters. `kinds`: of the loaded ones; `left_out`: by kind, why one is not used."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self._kinds = tuple(kinds)
        self._drafts = Counter[str]()
        self._right = set[str]()
        self._prefix: str | None = None  # of reasons, made once: steps of a small model are short
        self.left_out: dict[str, str] = {}

    @property
    def none_left(self) -> bool:
        """Whether every drafter was left out."""
        return bool(self.left_out) and self.left_out.keys() >= set(self._kinds)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know of the drafters, a line each."""
        left_out = (f"{kind} is left out: {error}" for kind, error in self.left_out.items())
        return (*left_out, *(f"{one}; load the drafter that was made for it, or none" for one in self._misfits()))

    def _misfits(self) -> list[str]:
        return [
            f"{kind} does not fit this target: none of its {drafts} drafts was accepted"
            for kind, drafts in self._drafts.items()
            if drafts >= MISSES and kind not in self._right and kind not in self.left_out
        ]

    def reason(self, decision: Decision, knobs: Knobs) -> str:
        """A step's reason, with what is wrong with a drafter before it, where the user wants drafts."""
        if knobs.mode == "plain":
            return decision.reason
        if self._prefix is None:
            left_out = (f"{kind} is left out, its numbers are not finite" for kind in self.left_out)
            self._prefix = "".join(f"{one}; " for one in (*left_out, *self._misfits()))
        return self._prefix + decision.reason

    def leave_out(self, kind: str, error: NumericsError) -> None:
        """Leave a drafter out."""
        self.left_out.setdefault(kind, str(error))
        self._prefix = None

    def count(self, step: StepEvent) -> None:
        """Count a step."""
        kind = step.drafter or (self._kinds[0] if len(self._kinds) == 1 and step.mode != "plain" else "")
        if not kind or kind == COPIES or kind in self._right or not step.drafts.tokens:
            return
        self._drafts[kind] += 1
        self._prefix = None
        if draft_was_right(step):
            self._right.add(kind)


def draft_was_right(step: StepEvent) -> bool:
    """Whether the target drew a token of the step's draft, not only tokens that were copied from the text. Where no
    candidate was worth verifying, the first token shows whether the best was right."""
    if not step.drafts.tokens:
        return False
    return step.drafts.tokens[0][0] == step.tokens[0] or bool(set(step.tree.accepted[1:]) - set(step.tree.copied))


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
        self.injected(())

    @property
    def busy_soon(self) -> bool:
        """Whether something comes soon that takes the host longer than usual, such as another decision, or learning in
        `spare`: a device should have more steps queued by then."""
        return False

    def queued(self) -> None:
        """The step of the newest decision was queued on a device: `next` is for the one behind it."""

    def injected(self, tokens: Sequence[int]) -> None:
        """Tokens were appended to the answer without a step."""

    def end(self) -> None:
        """The answer is over."""

    def found(self) -> tuple[FoundRow, ...]:
        """What was learned so far, one row per kind of candidate that was tried; may be called at any time."""
        return ()


class FixedPolicy(Policy):
    """Implements `policy.base.Policy`. `drafter`: the capabilities of the loaded drafter, None without one."""

    def __init__(self, drafter: Capabilities | None) -> None:
        super().__init__([one.kind for one in drafter.parts or (drafter,)] if drafter is not None else [])
        self._drafter = drafter

    def _next(self, knobs: Knobs) -> Decision:
        return as_set(knobs, self._drafter)


def as_set(knobs: Knobs, drafter: Capabilities | None) -> Decision:
    """What the knobs ask for."""
    if knobs.mode == "plain":
        return Decision("plain", 0, SET)
    if drafter is None:
        return Decision("plain", 0, "no drafter is loaded")
    if knobs.mode == "chain":
        return Decision("chain", min(knobs.budget, drafter.drafted(knobs)), SET)
    return Decision("tree", knobs.budget, SET if knobs.mode == "tree" else "a drafter is loaded")
