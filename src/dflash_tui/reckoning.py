"""Estimates the memory that a request needs, from headers. It imports torch, but none of the decoder."""

from __future__ import annotations

from dflash_core.fits import Reckoner
from dflash_core.loading import CardOptions, reckoner_of
from dflash_tui.session import LoadRequest


def reckoner_for(request: LoadRequest, memory: int = 0) -> Reckoner:
    """A planner for `request`: memory use of each way to load it, out of `memory` bytes (0: of this machine).

    Raises DFlashError.
    """
    return reckoner_of(*request.files, request.device, memory=memory, card=card_options(request))


def card_options(request: LoadRequest) -> CardOptions:
    """How the weights of a request are stored and multiplied on a card."""
    return CardOptions(
        request.activations,
        request.draft_type,
        request.tune,
        vram_limit=request.vram_limit,
        embedding=request.embedding,
        reading=request.reading,
    )
