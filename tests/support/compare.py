"""Compares an answer with that of plain decoding. On a CPU near-ties are excused, counted and listed:
docs/architecture.md, section 3.

On a card all modes leave the same bits, so nothing is excused: tests compare tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dflash_core import Engine, Knobs
from dflash_core.backends.opened import Target
from dflash_core.sampling import Sampler

NEAR_TIE = 1e-4
CARD_NEAR_TIE = 2e-2  # on a card, where prompts were read in different ways: in chunks, or as answers
EXCUSED_SHARE = 2 / 1000


def generated(engine: Engine, ids: Sequence[int], knobs: Knobs) -> list[int]:
    return [token for event in engine.generate(ids, knobs) for token in event.tokens]


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """The index where two answers first differ; None where they agree as far as both go."""
    return next((place for place, (a, b) in enumerate(zip(ours, theirs)) if a != b), None)


def gap(target: Target, ids: Sequence[int], answer: Sequence[int], knobs: Knobs) -> float:
    """Top-1 minus top-2 score (noise included where sampled) of the token after `ids` and `answer`."""
    row = target.logits([*ids, *answer])[-1]
    _, scores = Sampler(knobs).scores(row, len(ids) + len(answer), answer)
    best = sorted(scores, reverse=True)
    return float(best[0] - best[1]) if len(best) > 1 else float("inf")


@dataclass
class Comparison:
    """Collects comparisons; `excused` lists (prompt tokens, index in the answer, gap) of every near-tie.

    `reference`: the target whose scores decide what a near-tie is; by default the engine's own.
    """

    reference: Target | None = None
    near_tie: float = NEAR_TIE
    share: float = EXCUSED_SHARE
    tokens: int = 0
    excused: list[tuple[int, int, float]] = field(default_factory=list)

    def add(self, engine: Engine, ids: Sequence[int], plain: Sequence[int], knobs: Knobs) -> None:
        """Decode with `knobs` and compare with the `plain` answer; after a near-tie go on from the plain prefix."""
        self.tokens += len(plain)
        done = 0
        while done < len(plain):
            rest = knobs.replace(max_tokens=knobs.max_tokens - done)
            ours = generated(engine, [*ids, *plain[:done]], rest)
            agreed = first_difference(ours, plain[done:])
            if agreed is None:
                assert len(ours) == len(plain) - done, f"the answer ends elsewhere with {knobs}"
                return
            done += agreed
            distance = gap(self.reference or engine.target, ids, plain[:done], knobs)
            assert distance < self.near_tie, (
                f"token {done} differs with {knobs}: no near-tie, the gap is {distance:.2g}"
            )
            self.excused.append((len(ids), done, distance))
            done += 1

    def check(self) -> None:
        assert len(self.excused) <= max(1, self.share * self.tokens), f"too many near-ties: {self.excused}"
