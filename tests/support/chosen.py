"""The path that a block drafter's own candidates give."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dflash_core import Knobs

if TYPE_CHECKING:
    from dflash_core.backends.cpu.dflash import CpuDFlash
    from dflash_core.backends.cuda.target import CudaDraft


def chosen_path(draft: CpuDFlash | CudaDraft, features: np.ndarray, anchor: int) -> list[int]:
    """The best token of each depth after a context, each scored by the one before it where the drafter can."""
    drafts, path = draft._behind(features, anchor).propose(anchor, Knobs()), [anchor]
    for depth in range(len(drafts.tokens)):
        path.append(drafts.below(depth, path[-1])[0][0])
    return path[1:]
