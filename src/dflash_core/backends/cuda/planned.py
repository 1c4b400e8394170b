"""Descriptions of cards, to make plans without a card: the properties that layouts depend on, and the memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace

from dflash_core.backends.cuda.driver import CardFacts, Driver, describe_card, find_driver
from dflash_core.backends.cuda.memory_estimator import context_bytes
from dflash_core.backends.cuda.meta import MetaDevice
from dflash_core.backends.cuda.plan import Card
from dflash_core.memory import gib
from dflash_core.nvml import holders, used_by_others

GIB, MIB, KIB = 1 << 30, 1 << 20, 1 << 10
SMALL_SHARED, LARGE_SHARED = 99 * KIB, 227 * KIB


class PlannedDevice(MetaDevice):
    """A substitute for `device.CudaDevice` when only headers are read and sizes are computed. All the card's memory is
    free: that of other programs is not counted as part of it."""

    def __init__(self, card: PlannedCard) -> None:
        super().__init__(card.layout)
        self.runtime = SimpleNamespace(
            card=SimpleNamespace(name=card.name, bus=""), memory=lambda: (card.free, card.free)
        )


@dataclass(frozen=True, slots=True)
class PlannedCard:
    """`free`: bytes that this program may use, including its own CUDA context; `holders`: other processes on the card
    of this machine, in one line."""

    name: str
    free: int
    layout: Card
    """The properties that plans of products depend on."""
    holders: str = ""

    def device(self) -> PlannedDevice:
        return PlannedDevice(self)


def _known(
    name: str, size: int, processors: int, l2: int, shared: int = SMALL_SHARED, overlaps: bool = False
) -> PlannedCard:
    return PlannedCard(name, size * GIB, Card(processors, shared, overlaps=overlaps, l2_bytes=l2 * MIB))


KNOWN: Sequence[PlannedCard] = (
    _known("NVIDIA GeForce RTX 4060", 8, 24, 24),
    _known("NVIDIA GeForce RTX 3060", 12, 28, 3),
    _known("NVIDIA GeForce RTX 4080", 16, 76, 64),
    _known("NVIDIA GeForce RTX 4090", 24, 128, 72),
    _known("NVIDIA GeForce RTX 5090", 32, 170, 96, overlaps=True),
    _known("NVIDIA L40S", 48, 142, 96),
    _known("NVIDIA H100", 80, 132, 50, LARGE_SHARED, overlaps=True),
    _known("NVIDIA H200", 141, 132, 50, LARGE_SHARED, overlaps=True),
)
"""In the order of their memory: a plan for a memory size uses the first card that has as much."""


def card_of(memory: int) -> PlannedCard:
    """The smallest known card with at least `memory` bytes, or else the largest one, with its memory set to that."""
    like = next((card for card in KNOWN if card.free >= memory), KNOWN[-1])
    return PlannedCard(f"{gib(memory)} of a card like {like.name}", memory, like.layout)


def card_here() -> PlannedCard:
    """The first visible card, as its driver describes it. Raises DeviceError or UnsupportedError."""
    facts: CardFacts = describe_card(Driver(find_driver()))
    # Add back what this program itself uses. If the driver does not report memory by process, that is all used memory.
    own = max(facts.total - facts.free - used_by_others(facts.bus), 0)
    free = facts.free + min(own, context_bytes(facts.processors))
    return PlannedCard(facts.name, free, Card.of(facts), holders(facts.bus))
