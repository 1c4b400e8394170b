"""Memory plans without files: a pair with a published model's shapes on a card of a given size."""

from __future__ import annotations

import copy

from dflash_core.backends.cuda.memory_estimator import CardMemoryEstimator
from dflash_core.backends.cuda.meta import card_of
from dflash_core.backends.cuda.plan import Card
from dflash_core.bench.shapes import card_estimator, headers
from dflash_core.bench.synthetic_models import SIZE_27B, Model

_MADE: dict[tuple[Card, str, str], CardMemoryEstimator] = {}


def estimator(memory: int, draft: str = "BF16", model: Model = SIZE_27B) -> CardMemoryEstimator:
    """The model and its DFlash drafter on a card of `memory` bytes; the drafter's matrices are of type `draft`.

    Those of one card, which differ in memory alone, share what they have computed."""
    card = card_of(memory)
    key = (card.layout, draft, model.name)
    if key not in _MADE:
        _MADE[key] = fresh_estimator(memory, draft, model)
    made = copy.copy(_MADE[key])
    made.machine, made.available = card.name, card.free
    return made


def fresh_estimator(memory: int, draft: str = "BF16", model: Model = SIZE_27B) -> CardMemoryEstimator:
    """The same, with nothing computed yet."""
    spec, target, drafter = headers(model, draft)
    found = card_estimator(spec, target, drafter, card_of(memory))
    assert found.kv_types
    return found
