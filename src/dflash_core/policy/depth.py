"""How deep a drafter drafts whose every token costs a pass of its own: as far as the next one is worth its time.

Of each depth it is known how often walks came there once they had come to the one above; a depth that was not tried is
taken to be like the one above it, and one more than pays is tried now and then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dflash_core.knobs import MOST_MTP_DEPTH, SPEC, Knobs

START_CHANCE, PRIOR_TRIALS = 0.7, 4.0
FORGET_AT = 200.0
FIRST_STEPS = 4  # before anything is known
PROBE_EVERY = 32  # steps, of which one goes a token deeper
LEAST_WEIGHT = 0.05  # of a step in the mean time of a pass
START_DEPTH = SPEC["mtp_depth"].default


@dataclass(slots=True)
class Depths:
    """What was seen of depths 1, 2, ..; `pass_ms`: a pass of the drafter, 0 until it is known."""

    trials: list[float] = field(default_factory=lambda: [0.0] * MOST_MTP_DEPTH)
    hits: list[float] = field(default_factory=lambda: [0.0] * MOST_MTP_DEPTH)
    pass_ms: float = 0.0
    steps: int = 0

    def chances(self) -> Sequence[float]:
        """That a walk which has come to the depth above comes to each."""
        chances, above = list[float](), START_CHANCE
        for hits, trials in zip(self.hits, self.trials, strict=True):
            above = (hits + PRIOR_TRIALS * above) / (trials + PRIOR_TRIALS)
            chances.append(above)
        return chances

    def add(self, drafted: int, accepted: int, ms: float) -> None:
        """Count a step that drafted `drafted` tokens in `ms` milliseconds, `accepted` of which were taken."""
        if not drafted:
            return
        for at in range(min(accepted + 1, drafted)):
            self.trials[at] += 1
            self.hits[at] += accepted > at
            if self.trials[at] > FORGET_AT:
                self.trials[at] /= 2
                self.hits[at] /= 2
        self.steps += 1
        self.pass_ms += max(LEAST_WEIGHT, 1 / self.steps) * (ms / drafted - self.pass_ms)

    def best(self, rate: float) -> int:
        """The tokens to draft at `rate` tokens per millisecond."""
        if self.steps < FIRST_STEPS:
            return int(START_DEPTH)
        depth, reach = 0, 1.0
        for chance in self.chances():
            reach *= chance
            if reach < rate * self.pass_ms:
                break
            depth += 1
        return min(max(depth, 1) + (self.steps % PROBE_EVERY == 0), MOST_MTP_DEPTH)


def most_depth(knobs: Knobs) -> int:
    """How deep the program may go, 0 where it has no say: a depth that was set is kept to, unless the policy says that
    it caps; the table's own is that of fixed trees."""
    if knobs.policy == "capped":
        return knobs.mtp_depth
    return MOST_MTP_DEPTH if knobs.mtp_depth == START_DEPTH else 0


def at_depth(knobs: Knobs, depth: int) -> Knobs:
    """What a step drafts with that was decided to go so deep; 0: as the knobs say."""
    return knobs.replace(mtp_depth=depth) if depth and depth != knobs.mtp_depth else knobs
