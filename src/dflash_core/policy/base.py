"""The seam between a decoder and the rule that picks what its next step runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from dflash_core.events import EffectiveMode, StepEvent
from dflash_core.knobs import Knobs


@dataclass(frozen=True, slots=True)
class Decision:
    """What a step really runs, and why it is not something else. `budget`: nodes below the root, 0 where none."""

    mode: EffectiveMode
    budget: int
    reason: str


class Policy(Protocol):
    """Picks what runs. Owned by one decoder, called on its thread; the text of an answer never depends on it."""

    def next(self, knobs: Knobs) -> Decision:
        """What the next step runs under `knobs`. Asked again for the same step, it answers the same."""

    def observe(self, step: StepEvent) -> None:
        """A step that was decided here is over. Steps come in order, on a card a few of them late."""
