"""The seam between a runner and what watches over an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dflash_core.events import GuardEvent


@dataclass(frozen=True, slots=True)
class Intervention:
    """What happens where an answer has halted: `tokens` are said in the model's place; without any, it ends there."""

    event: GuardEvent
    tokens: tuple[int, ...] = ()


class Guard(Protocol):
    """Watches one answer, token by token. What it decides depends on the tokens alone, never on how they came in steps.

    Steps of a card are under way before the ones before them were seen, so a limit that comes up in mid-answer leaves
    them room: it is LAG tokens after the token that brought it up, or further.
    """

    @property
    def limit(self) -> int | None:
        """Tokens of the answer at which decoding halts; None while there is no such point."""

    @property
    def intervention(self) -> Intervention | None:
        """What to do after the last token, where decoding has halted; None to go on, because what the limit stood for
        is over."""

    def see(self, tokens: Sequence[int], *, said: bool = False) -> None:
        """The answer goes on with `tokens`; `said`: they are an intervention's."""


LAG = 160
"""Tokens between a finding and what comes of it: more than steps under way can commit."""
