"""Which layer of a model is on which card."""

from __future__ import annotations

from dataclasses import dataclass

from dflash_core.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class Placement:
    """`cards[i]`: the card that holds layer i, by the driver's order of visible cards. Weights before the first
    layer are on its card, and those after the last layer are on the last layer's."""

    cards: tuple[int, ...]

    @staticmethod
    def on_one(layers: int) -> Placement:
        """All `layers` on the first card."""
        return Placement((0,) * layers)

    @property
    def single(self) -> int:
        """The card that holds everything. Raises UnsupportedError where layers are on several."""
        cards = sorted(set(self.cards))
        if len(cards) != 1:
            raise UnsupportedError(f"layers on cards {', '.join(map(str, cards))}, expected all of them on one")
        return cards[0]
