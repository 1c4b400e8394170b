"""Memory plans without files: a pair with a published model's shapes on a card of a given size."""

from __future__ import annotations

from dflash_core.backends.cuda.memory_estimator import CardMemoryEstimator
from dflash_core.backends.cuda.planned import card_of
from dflash_core.bench.shapes import card_estimator, headers
from dflash_core.bench.synthetic_models import SIZE_27B, Model


def estimator(memory: int, draft: str = "BF16", model: Model = SIZE_27B) -> CardMemoryEstimator:
    """The model and its DFlash drafter on a card of `memory` bytes; the drafter's matrices are of type `draft`."""
    spec, target, drafter = headers(model, draft)
    return card_estimator(spec, target, drafter, card_of(memory))
