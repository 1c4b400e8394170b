"""What drafts may lose: time in plain steps, of which every step earns a share, and which every draft settles.

The loss that is settled is the one that was measured, not the one that was expected. So what a drafter loses against
plain decoding is bounded on any machine and for any model: the start, the share of all time, and one step that took
longer than was known.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

SHARE = 0.01  # of the time, for drafts that may lose some
START_SPARE = 2.0  # plain steps: a turn that thinks and answers starts three allowances, and may lose 5 % of 256 tokens
MAX_CREDIT = 12.0  # the most that gains add up to, so that a drafter which was good may not lose for long


@dataclass(slots=True)
class Allowance:
    """Of one drafter in one part of the text. `spare`: plain steps that may still be lost by tries, drafts that are
    expected to lose; `credit`: those that drafts have gained, which others that were expected to pay may lose again."""

    spare: float = START_SPARE
    credit: float = 0.0

    def earn(self, plain: float, share: float = SHARE) -> None:
        """Count the time of a step, in plain steps."""
        self.spare += share * plain

    def settle(self, gained: float, lost: float = 0.0) -> None:
        """Count the result of a draft: plain steps gained, or lost where negative. `lost`: what it was expected to
        lose, which a try uses up at least."""
        self.spare -= lost
        self.credit = min(self.credit + (gained if gained > 0 else min(gained + lost, 0.0)), MAX_CREDIT)
        if self.credit < 0:
            self.spare, self.credit = self.spare + self.credit, 0.0

    def covers(self, lost: float) -> bool:
        """Whether a draft that is expected to lose that much may be tried."""
        return lost <= self.spare

    @property
    def left(self) -> float:
        """Plain steps that drafts which are expected to pay may still lose."""
        return self.spare + self.credit


def further(others: Collection[Allowance], start: float = START_SPARE) -> Allowance:
    """That of a drafter in a further part of the text: it starts with nothing where the drafter has used up what it had
    in one of `others`, and gained nothing in any. `start`: what it starts with elsewhere, in plain steps."""
    used = any(one.spare < start / 2 for one in others)
    gained = any(one.credit for one in others)
    return Allowance(0.0 if used and not gained else start)
