"""The path that a block drafter's own candidates give."""

from __future__ import annotations

import numpy as np

from dflash_core import Knobs
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.drafters.draft import Draft
from support.behind import behind, card_behind


def chosen_path(draft: Draft, features: np.ndarray, anchor: int, card: DeviceTarget | None = None) -> list[int]:
    """The best token of each depth after a context, each scored by the one before it where the drafter can. `card`: as
    of `draft_logits`."""
    drafter = behind(draft, features) if draft.drafter else card_behind(draft, features, card)
    drafts, path = drafter.propose(anchor, Knobs()), [anchor]
    for depth in range(len(drafts.tokens)):
        path.append(drafts.below(depth, path[-1])[0][0])
    return path[1:]
