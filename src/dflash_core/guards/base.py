"""The interface between a runner and the guards of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dflash_core.events import GuardEvent


@dataclass(frozen=True, slots=True)
class Intervention:
    """The action of a guard: `tokens` are inserted in the model's place; without any, the answer ends."""

    event: GuardEvent
    tokens: tuple[int, ...] = ()


class Guard(Protocol):
    """Watches one answer, token by token. Decisions depend only on the tokens: how steps group them changes nothing.

    On a card, steps are queued before the results of earlier ones are known. So a limit found in mid-answer is at least
    LAG tokens after the token that caused it.
    """

    @property
    def limit(self) -> int | None:
        """Tokens of the answer at which decoding halts; None while there is no such point."""

    @property
    def intervention(self) -> Intervention | None:
        """The action after the last token, where decoding has halted; None to continue, because the reason for the
        limit no longer exists."""

    @property
    def requested(self) -> Intervention | None:
        """The action that the user has requested, to be taken as soon as possible; None without one."""

    def ended(self) -> Intervention | None:
        """The model has drawn a stop token after what was seen. The action's tokens replace it; None: the answer
        ends."""

    def see(self, tokens: Sequence[int], *, injected: bool = False) -> None:
        """The answer continues with `tokens`; `injected`: they are an intervention's."""


LAG = 160
"""Tokens between a finding and its action: more than queued steps can commit."""
