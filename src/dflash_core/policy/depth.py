"""The draft depth of a drafter that needs a pass for every token: it goes on while the next token is worth its time.

For each depth it is counted how often it was accepted when the depth above it was. A depth that was not tried is
assumed to be like the one above it. Now and then one token more than pays is drafted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dflash_core.knobs import MAX_MTP_DEPTH, SPEC, Knobs

START_CHANCE, PRIOR_TRIALS = 0.7, 4.0
FORGET_AT = 200.0
FIRST_STEPS = 4  # steps with START_DEPTH, before anything is known
PROBE_EVERY = 32  # one step in so many goes a token deeper
MIN_WEIGHT = 0.05  # least weight of a step in the mean time of a pass
START_DEPTH = SPEC["mtp_depth"].default


@dataclass(slots=True)
class Depths:
    """Counts for depths 1, 2, ..: `trials` of each and `hits` of them; `pass_ms`: mean time of a pass of the drafter, 0
    until it is known."""

    trials: list[float] = field(default_factory=lambda: [0.0] * MAX_MTP_DEPTH)
    hits: list[float] = field(default_factory=lambda: [0.0] * MAX_MTP_DEPTH)
    pass_ms: float = 0.0
    steps: int = 0

    def chances(self) -> Sequence[float]:
        """By depth: the chance that it is accepted, given that the depth above it is."""
        chances, above = list[float](), START_CHANCE
        for hits, trials in zip(self.hits, self.trials, strict=True):
            above = (hits + PRIOR_TRIALS * above) / (trials + PRIOR_TRIALS)
            chances.append(above)
        return chances

    def add(self, drafted: int, accepted: int, ms: float) -> None:
        """Count a step that drafted `drafted` tokens in `ms` milliseconds, of which the first `accepted` were kept."""
        if not drafted:
            return
        for at in range(min(accepted + 1, drafted)):
            self.trials[at] += 1
            self.hits[at] += accepted > at
            if self.trials[at] > FORGET_AT:
                self.trials[at] /= 2
                self.hits[at] /= 2
        self.steps += 1
        self.pass_ms += max(MIN_WEIGHT, 1 / self.steps) * (ms / drafted - self.pass_ms)

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
        return min(max(depth, 1) + (self.steps % PROBE_EVERY == 0), MAX_MTP_DEPTH)


def max_depth(knobs: Knobs) -> int:
    """The greatest depth that the program may choose; 0 where the user has set one, which is then used as it is. Under
    `auto up to N` the knob is an upper limit. Its default applies to trees and chains only."""
    if knobs.cap is not None:
        return knobs.mtp_depth
    return MAX_MTP_DEPTH if knobs.mtp_depth == START_DEPTH else 0


def at_depth(knobs: Knobs, depth: int) -> Knobs:
    """The knobs for drafting to `depth`; 0: unchanged."""
    return knobs.replace(mtp_depth=depth) if depth and depth != knobs.mtp_depth else knobs
