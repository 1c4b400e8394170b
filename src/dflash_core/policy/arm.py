"""What is known about one drafter on this machine: learned values, what its drafts brought, and what steps cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from dflash_core.drafters.capabilities import Capabilities
from dflash_core.events import StepEvent
from dflash_core.knobs import MAX_MTP_DEPTH, SPEC, Knobs
from dflash_core.policy.base import COPIES
from dflash_core.policy.choosing import Drafts
from dflash_core.policy.copying import Copies
from dflash_core.policy.costs import StepCosts
from dflash_core.policy.values import CHILD, CLASSES, COPIED, DEEPER, SPINE, Learned
from dflash_core.turn_stats import FoundRow

Part = Literal["answer", "thinking"]
PARTS: tuple[Part, ...] = ("answer", "thinking")
START_TOKENS, START_ROWS = 3.0, 16  # before any step ran: the assumed tokens of a step, and its rows
MIN_WEIGHT = 0.02
START_CHANCE, PRIOR_TRIALS = 0.7, 4.0
FORGET_AT = 200.0
FIRST_STEPS = 4  # steps with START_DEPTH, before anything is known
PROBE_EVERY = 32  # one step in this many goes a token deeper
MIN_PASS_WEIGHT = 0.05  # least weight of a step in the mean time of a pass
START_DEPTH = SPEC["mtp_depth"].default


@dataclass(slots=True)
class Pace:
    """Running means of a step's tokens and of its time in units of the cost of START_ROWS rows."""

    tokens: float = START_TOKENS
    units: float = 1.0
    steps: int = 0

    def add(self, tokens: int, ms: float, unit_ms: float, *, drafted: bool = True, steps: int = 1) -> None:
        """Count a step that drafted, or `steps` alike that did not."""
        self.steps += drafted
        weight = max(MIN_WEIGHT, 1 / (5 + self.steps)) if drafted else 1 - (1 - MIN_WEIGHT) ** steps
        self.tokens += weight * (tokens - self.tokens)
        self.units += weight * (ms / unit_ms - self.units)

    def rate(self, unit_ms: float) -> float:
        """Tokens per millisecond. `unit_ms`: what START_ROWS rows cost now."""
        return self.tokens / (self.units * unit_ms)


@dataclass(slots=True)
class Depths:
    """By depth from 1 on: `trials`, and `hits` of them. `pass_ms`: mean time of a pass of the drafter."""

    trials: list[float] = field(default_factory=lambda: [0.0] * MAX_MTP_DEPTH)
    hits: list[float] = field(default_factory=lambda: [0.0] * MAX_MTP_DEPTH)
    pass_ms: float = 0.0
    steps: int = 0

    def add(self, drafted: int, accepted: int, ms: float) -> None:
        """Count a step that drafted `drafted` tokens in `ms` milliseconds."""
        if not drafted:
            return
        for at in range(min(accepted + 1, drafted)):
            self.trials[at] += 1
            self.hits[at] += accepted > at
            if self.trials[at] > FORGET_AT:
                self.trials[at] /= 2
                self.hits[at] /= 2
        self.steps += 1
        self.pass_ms += max(MIN_PASS_WEIGHT, 1 / self.steps) * (ms / drafted - self.pass_ms)

    def best(self, rate: float) -> int:
        """The tokens to draft at `rate` tokens per millisecond."""
        if self.steps < FIRST_STEPS:
            return int(START_DEPTH)
        depth, reach, chance = 0, 1.0, START_CHANCE
        for hits, trials in zip(self.hits, self.trials, strict=True):
            chance = (hits + PRIOR_TRIALS * chance) / (trials + PRIOR_TRIALS)  # given that the depth above is accepted
            reach *= chance
            if reach < rate * self.pass_ms:
                break
            depth += 1
        return min(max(depth, 1) + (self.steps % PROBE_EVERY == 0), MAX_MTP_DEPTH)


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
    """A drafter that a policy may choose. `save` is called after an answer that changed `state`. `copies_only`: it has
    no model, and copies text."""

    drafter: Capabilities
    state: PairState
    costs: StepCosts
    save: Callable[[PairState], None] | None = None
    depths: dict[Part, Depths] = field(default_factory=lambda: {part: Depths() for part in PARTS})
    changed: bool = False
    kind: str = field(init=False)
    copies_only: bool = field(init=False)

    def __post_init__(self) -> None:
        self.kind = self.drafter.kind
        self.copies_only = self.kind == COPIES

    @property
    def unit(self) -> float:
        """Milliseconds of a step of START_ROWS rows, the unit of a pace."""
        return self.costs.curve()[START_ROWS]

    @property
    def rate(self) -> float:
        """The present rate in tokens per millisecond."""
        return self.state.pace.rate(self.unit)

    def depth(self, knobs: Knobs, part: Part) -> int:
        """Tokens to draft where each costs a pass; 0 for the knobs' value, which a user may have set. Under `auto up
        to N` that is an upper limit."""
        if not self.drafter.depth_knob or (knobs.cap is None and knobs.mtp_depth != START_DEPTH):
            return 0
        return min(self.depths[part].best(self.rate), MAX_MTP_DEPTH if knobs.cap is None else knobs.mtp_depth)

    def count_depth(self, step: StepEvent, part: Part, *, anew: bool) -> None:
        """Count a draft. `anew`: drafts may have become better, so earlier ones no longer count."""
        if anew:
            self.depths[part] = Depths()
        if self.drafter.depth_knob:
            drafted = len(step.drafts.tokens)
            self.depths[part].add(drafted, min(step.accepted_depth, drafted), step.stages.draft)

    def end(self) -> None:
        """An answer is over."""
        if self.changed and self.save is not None:
            self.save(self.state)
        self.changed = False

    def found(self) -> tuple[FoundRow, ...]:
        """What was learned so far, reasoning and answers together, a row per kind of candidate that was tried."""
        parts = [part.learned for part in self.state.parts.values()]
        columns = [[getattr(one, name) for one in parts] for name in ("trials", "stated", "expected", "found")]
        rows = []
        for name, first, last in KINDS:
            trials, *sums = (sum(float(one[first : last + 1].sum()) for one in column) for column in columns)
            if trials:
                rows.append(FoundRow(name, int(trials), *(one / trials for one in sums)))
        return tuple(rows)
