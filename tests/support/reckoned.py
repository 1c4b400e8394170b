"""Memory plans without files: a pair with a published model's shapes on a card of a given size."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from dflash_core.backends.cuda.footprint import Footprint
from dflash_core.backends.cuda.planned import card_of
from dflash_core.backends.cuda.reckoner import CardReckoner
from dflash_core.bench.synthetic_models import SIZE_27B, Model, draft_types, target_types
from support.kernel_variants import header


def reckoner(memory: int, draft: str = "BF16", model: Model = SIZE_27B) -> CardReckoner:
    """The model and its DFlash drafter on a card of `memory` bytes; the drafter's matrices are of type `draft`."""
    card, spec = card_of(memory), model.target()
    types = {name: kind if kind == "F32" else draft for name, kind in draft_types(model.draft).items()}
    target = header(model.name, spec.tensors(), target_types(spec, model))
    opened: Any = SimpleNamespace(files=(header("draft", model.draft.tensors(), types),), config=model.draft)
    footprint = Footprint(target, spec, card.layout)
    return CardReckoner(
        footprint, spec, opened, machine=card.name, processors=card.layout.multiprocessors, available=card.free
    )
