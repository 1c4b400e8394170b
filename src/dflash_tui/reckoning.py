"""What a request would take of memory, from headers. It brings torch, and nothing of what answers."""

from __future__ import annotations

from dflash_core.fits import Reckoner
from dflash_core.loading import CardOptions, reckoner_of
from dflash_tui.session import LoadRequest


def reckoner_for(request: LoadRequest, memory: int = 0) -> Reckoner:
    """What says what `request` would take, loaded in one way or another, of `memory` bytes (0: of what is here).

    Raises DFlashError.
    """
    return reckoner_of(*request.files, request.device, memory=memory, card=card_options(request))


def card_options(request: LoadRequest) -> CardOptions:
    """How a request's weights are held and multiplied on a card."""
    return CardOptions(
        request.activations,
        request.draft_type,
        request.tune,
        vram_limit=request.vram_limit,
        embedding=request.embedding,
    )
