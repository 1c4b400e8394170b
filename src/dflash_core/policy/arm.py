"""What is known about one drafter on this machine: learned values, what its drafts brought, and what steps cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from dflash_core.drafters.capabilities import Capabilities
from dflash_core.events import StepEvent
from dflash_core.knobs import Knobs
from dflash_core.policy.choosing import Drafts
from dflash_core.policy.copying import Copies
from dflash_core.policy.costs import StepCosts
from dflash_core.policy.depth import Depths, max_depth
from dflash_core.policy.pace import START_ROWS, Pace
from dflash_core.policy.values import CHILD, CLASSES, COPIED, DEEPER, SPINE, Learned
from dflash_core.policy.watch import COPIES
from dflash_core.turn_stats import FoundRow

Part = Literal["answer", "thinking"]
PARTS: tuple[Part, ...] = ("answer", "thinking")


@dataclass(slots=True)
class PartState:
    """What was learned about reasoning, or about answers."""

    learned: Learned = field(default_factory=Learned)
    copies: Copies = field(default_factory=Copies)
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


@dataclass(eq=False, slots=True)
class Arm:
    """A drafter that a policy may choose. `keep` is called after an answer from which something was learned."""

    drafter: Capabilities
    state: PairState
    costs: StepCosts
    keep: Callable[[PairState], None] | None = None
    depths: dict[Part, Depths] = field(default_factory=lambda: {part: Depths() for part in PARTS})
    news: bool = False

    @property
    def kind(self) -> str:
        return self.drafter.kind

    @property
    def copies_only(self) -> bool:
        """Whether the drafter only copies text."""
        return self.drafter.kind == COPIES

    @property
    def unit(self) -> float:
        """Milliseconds of a step of START_ROWS rows, the unit of a pace."""
        return self.costs.curve()[START_ROWS]

    @property
    def rate(self) -> float:
        """The present rate in tokens per millisecond."""
        return self.state.pace.rate(self.unit)

    def depth(self, knobs: Knobs, part: Part) -> int:
        """Tokens to draft where each costs a pass; 0 for the knobs' value."""
        most = max_depth(knobs) if self.drafter.depth_knob else 0
        return min(self.depths[part].best(self.rate), most) if most else 0

    def count_depth(self, step: StepEvent, part: Part, *, anew: bool) -> None:
        """Count a draft. `anew`: drafts may have become better, so earlier ones no longer count."""
        if anew:
            self.depths[part] = Depths()
        if self.drafter.depth_knob:
            drafted = len(step.drafts.tokens)
            self.depths[part].add(drafted, min(step.accepted_depth, drafted), step.stages.draft)

    def end(self) -> None:
        """An answer is over."""
        if self.news and self.keep is not None:
            self.keep(self.state)
        self.news = False

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


def copies(arms: Iterable[Arm]) -> Arm | None:
    """The one of them that only copies text."""
    return next((arm for arm in arms if arm.copies_only), None)
