"""Which run of an experiment comes next: every arm on every prompt, or sequential halving of the arms.

Runs are interleaved, so any two arms that are left have the same prompts. With halving the slower half of the arms is
out after each round (Karnin, Koren and Somekh, 2013). A round is every prompt at least once, `ROUND_PAIRS` pairs and
`ROUND_TOKENS` tokens at least. The present setting and `auto` stay to the end, as the table shows them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from dflash_core.lab.grid import Arm, Role


@dataclass(frozen=True, slots=True)
class Slot:
    """One run to make: which setting, on which prompt, and its repetition. All count from 0."""

    setting: int
    prompt: int
    repeat: int


def interleave(settings: int, prompts: int, repeats: int) -> Iterator[Slot]:
    """Every combination once. All settings run on a prompt before the next prompt; repeats come last.

    Each block of settings is followed by its mirror image, which cancels a drift that is linear in time, and every
    second block begins one setting later, so that none is always the first. Two settings: AB BA BA AB ...
    """
    block = 0
    for repeat in range(repeats):
        for prompt in range(prompts):
            shift, mirrored = divmod(block, 2)
            order = [(place + shift) % settings for place in range(settings)]
            for setting in reversed(order) if mirrored else order:
                yield Slot(setting, prompt, repeat)
            block += 1


ROUND_PAIRS, ROUND_TOKENS = 4, 128
ROUNDS = 3
STAYS: frozenset[Role] = frozenset({"now", "auto"})
Rank = Callable[[Sequence[int]], Sequence[int]]
"""Arms, by their places, the fastest first."""


class Schedule:
    """`next` gives a run, `done` takes the number of its tokens. `repeats`: of a grid."""

    def __init__(self, arms: Sequence[Arm], prompts: int, repeats: int = 1, *, halving: bool = False) -> None:
        self._arms, self._prompts, self._halving = list(arms), prompts, halving
        self.left = list(range(len(arms)))  # arms that are still measured
        self.excluded: set[int] = set()  # prompts that say nothing
        self._rounds = 0  # of halving, complete
        self._ran: dict[Slot, int] = {}
        self._repeats = self._round() if halving else repeats  # of each prompt, at the end of this round
        self.waiting: list[Slot] = []  # what is still to run in this round
        self._fill()

    def next(self, rank: Rank) -> Slot | None:
        """The next run; None at the end. Ends rounds of halving by `rank`."""
        while not self.waiting and self._halving and self._rounds < ROUNDS and len(self.left) > 1:
            if self._brief():
                self._repeats += 1
            else:
                self._drop(rank)
                self._rounds += 1
                if self._rounds == ROUNDS:
                    return None
                self._repeats += self._round()
            self._fill()
        return self.waiting[0] if self.waiting else None

    def done(self, slot: Slot, tokens: int) -> None:
        self._ran[slot] = tokens
        self.waiting.remove(slot)

    def exclude(self, prompt: int) -> None:
        """A prompt cannot be measured: it is left out for all arms."""
        self.excluded.add(prompt)
        if self._halving:
            self._repeats = max(self._repeats, self._round())
        self._fill()

    def extend(self, arms: Sequence[Arm]) -> None:
        """More arms; they catch up first."""
        self.left += range(len(self._arms), len(self._arms) + len(arms))
        self._arms += arms
        self._fill()

    def ahead(self) -> int:
        """The most runs that later rounds of halving can need."""
        if not self._halving:
            return 0
        field, runs = len(self.left), 0
        for _ in range(self._rounds + 1, ROUNDS):
            field = min(-(-field // 2) + len(STAYS), field)
            runs += field * (self._prompts - len(self.excluded)) * self._round()
        return runs

    def _fill(self) -> None:
        slots = interleave(len(self.left), self._prompts, self._repeats)
        found = (Slot(self.left[slot.setting], slot.prompt, slot.repeat) for slot in slots)
        self.waiting = [slot for slot in found if slot.prompt not in self.excluded and slot not in self._ran]

    def _round(self) -> int:
        """Repeats of each prompt in a round."""
        return -(-ROUND_PAIRS // max(self._prompts - len(self.excluded), 1))

    def _brief(self) -> bool:
        """Whether answers are so short that a first round needs more of them; of the briefest there are no more."""
        if self._rounds or not self._ran or self._repeats >= ROUNDS * self._round():
            return False
        return min(sum(n for slot, n in self._ran.items() if slot.setting == at) for at in self.left) < ROUND_TOKENS

    def _drop(self, rank: Rank) -> None:
        others = [at for at in rank(self.left) if self._arms[at].role not in STAYS]
        out = others[max(-(-len(others) // 2), 1) :]
        self.left = [at for at in self.left if at not in out]
