"""What is learned about a pair on this machine, and the code that all learning policies share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from dflash_core.drafters.capabilities import Capabilities
from dflash_core.events import StepEvent
from dflash_core.knobs import Knobs
from dflash_core.policy.base import Policy
from dflash_core.policy.choosing import Drafts
from dflash_core.policy.costs import StepCosts
from dflash_core.policy.depth import Depths, max_depth
from dflash_core.policy.fixed import FixedPolicy
from dflash_core.policy.pace import START_ROWS, Copies, Pace, Worth
from dflash_core.policy.values import CHILD, CLASSES, COPIED, DEEPER, SPINE, Learned
from dflash_core.turn_stats import FoundRow

Part = Literal["answer", "thinking"]
PARTS: tuple[Part, ...] = ("answer", "thinking")
AFTER = "after thinking"


@dataclass(slots=True)
class PartState:
    """What was learned about reasoning, or about answers."""

    learned: Learned = field(default_factory=Learned)
    copies: Copies = field(default_factory=Copies)
    worth: Worth = field(default_factory=Worth)  # where steps are decided late
    drafts: Drafts = field(default_factory=dict)
    after: Drafts = field(default_factory=dict)  # of answers that follow reasoning


@dataclass(slots=True)
class PairState:
    """What was learned about a pair on this machine."""

    parts: dict[Part, PartState] = field(default_factory=lambda: {part: PartState() for part in PARTS})
    pace: Pace = field(default_factory=Pace)


KINDS = (
    ("first choice", SPINE, SPINE),
    ("second choice", SPINE + 1, SPINE + 1),
    ("later choices", SPINE + 2, SPINE + 2),
    ("below a sibling", CHILD, CHILD + 2),
    ("deeper below it", DEEPER, DEEPER + 2),
    ("from the text", COPIED, CLASSES - 1),
)


@dataclass(eq=False, repr=False)
class PairPolicy(Policy):
    """The part of `policy.base.Policy` that does not depend on where trees are built.

    `think_ids`: the tokens that open and close reasoning, where the vocabulary has them. `keep` is called after an
    answer from which something was learned.
    """

    drafter: Capabilities | None
    state: PairState
    costs: StepCosts
    think_ids: tuple[int, int] | None = field(default=None, kw_only=True)
    keep: Callable[[PairState], None] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        self._fixed = FixedPolicy(self.drafter)
        self._stops = frozenset[int]()
        self._part: Part = "answer"
        self._thought = False  # the answer has reasoned
        self._depths: dict[Part, Depths] = {part: Depths() for part in PARTS}
        self._news = False
        self._tags = frozenset(self.think_ids or ())

    @property
    def _state(self) -> PartState:
        return self.state.parts[self._part]

    @property
    def place(self) -> str:
        """The part of the text by which drafters' results are kept. An answer after reasoning repeats it, so another
        drafter may be best there than in other answers."""
        return AFTER if self._thought and self._part == "answer" else self._part

    @property
    def _drafts(self) -> Drafts:
        return self._state.after if self.place == AFTER else self._state.drafts

    @property
    def rate(self) -> float:
        """The present rate in tokens per millisecond."""
        return self.state.pace.rate(self.costs.curve()[START_ROWS])

    def begin(self, ids: Sequence[int], stops: frozenset[int]) -> None:
        self._stops, self._part, self._thought = stops, "answer", False
        self._follow(ids)

    def end(self) -> None:
        if self._news and self.keep is not None:
            self.keep(self.state)
        self._news = False

    def found(self) -> tuple[FoundRow, ...]:
        """What was learned so far, reasoning and answers together, a row per kind of candidate that was tried."""
        parts = [part.learned for part in self.state.parts.values()]
        rows = []
        for name, first, last in KINDS:
            kind = slice(first, last + 1)
            trials = sum(int(one.trials[kind].sum()) for one in parts)
            if trials:
                sums = ([one.stated for one in parts], [one.expected for one in parts], [one.found for one in parts])
                means = [sum(float(each[kind].sum()) for each in several) / trials for several in sums]
                rows.append(FoundRow(name, trials, *means))
        return tuple(rows)

    def reset(self, state: PairState) -> None:
        """Reset to the start values `state`; not while an answer is under way."""
        self.state = state

    def _depth(self, knobs: Knobs) -> int:
        """Tokens to draft where each costs a pass; 0 for the knobs' value."""
        most = max_depth(knobs)
        return min(self._depths[self._part].best(self.rate), most) if self._by_token and most else 0

    @property
    def _by_token(self) -> bool:
        """Whether every drafted token costs a pass of the drafter."""
        return self.drafter is not None and bool(self.drafter.depth_knob)

    def _count_depth(self, step: StepEvent) -> None:
        if not self._by_token:
            return
        drafted = len(step.drafts.tokens)
        self._depths[self._part].add(drafted, min(step.accepted_depth, drafted), step.stages.draft)

    def _free(self, knobs: Knobs) -> bool:
        """Whether the knobs leave the choice to this policy."""
        return self.drafter is not None and knobs.mode == "auto"

    def _follow(self, ids: Sequence[int]) -> None:
        """Update whether the text is in reasoning after `ids`."""
        if self.think_ids is not None:
            last = next((token for token in reversed(ids) if token in self.think_ids), None)
            if last is not None:
                self._part = "thinking" if last == self.think_ids[0] else "answer"
                self._thought |= self._part == "thinking"
