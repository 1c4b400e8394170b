"""Estimates the memory that a request needs, from headers. This module imports torch, but none of the decoder."""

from __future__ import annotations

from dflash_core.bench.family_models import MODELS
from dflash_core.bench.shapes import estimator_of_shapes, headers
from dflash_core.fits import MemoryEstimator
from dflash_core.loading import estimator_of, planned_card
from dflash_tui.application.session import LoadRequest


def estimator_for(request: LoadRequest, memory: int = 0) -> MemoryEstimator:
    """A planner for `request`: memory use of each setup, out of `memory` bytes (0: of this machine).

    Raises DFlashError.
    """
    shapes, draft = request.shapes
    if shapes:
        model = MODELS[shapes]
        return estimator_of_shapes(model, draft, request.device, memory=memory, card=request.card)
    return estimator_of(*request.files, request.device, memory=memory, card=request.card)


def bytes_of_files(request: LoadRequest) -> tuple[int, int]:
    """The size of the target's and of the drafter's file of a request that is planned by its shapes."""
    name, draft = request.shapes
    _, target, drafter = headers(MODELS[name], draft)
    files = [target, *(drafter.files if drafter else ())]
    first, *rest = (sum(one.n_bytes for one in file.tensors.values()) for file in files)
    return first, sum(rest)


def holders_for(request: LoadRequest, memory: int = 0) -> str:
    """Other processes on the card that a plan for `request` is for, in one line; empty for a card that is not here."""
    card = planned_card(request.device, memory, request.card)
    return card.holders if card else ""
