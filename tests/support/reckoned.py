"""The 27B pair on a card of a given size, as plans reckon it: of shapes alone, without a file."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from dflash_core.backends.cuda.footprint import Footprint
from dflash_core.backends.cuda.planned import card_of
from dflash_core.backends.cuda.reckoner import CardReckoner
from dflash_core.bench.synthetic_models import DRAFT_27B, SIZE_27B, TARGET_27B, draft_types, target_types
from support.kernel_variants import header


def reckoner(memory: int, draft: str = "BF16") -> CardReckoner:
    """The 27B pair on a card of so much memory; the drafter's matrices are of type `draft`."""
    card = card_of(memory)
    types = {name: kind if kind == "F32" else draft for name, kind in draft_types(DRAFT_27B).items()}
    target = header("27b", TARGET_27B.tensors(), target_types(TARGET_27B, SIZE_27B))
    opened: Any = SimpleNamespace(file=header("draft", DRAFT_27B.tensors(), types), config=DRAFT_27B)
    footprint = Footprint(target, TARGET_27B, card.layout)
    return CardReckoner(
        footprint, TARGET_27B, opened, machine=card.name, processors=card.processors, available=card.free
    )
