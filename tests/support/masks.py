"""Masks of constraints, as ids."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from dflash_core.constraints.base import Mask


def mask_of(ids: Collection[int], vocab: int) -> Mask:
    """The mask of a vocabulary of `vocab` ids that allows these."""
    bits = np.zeros(-(-vocab // 32) * 32, np.uint8)
    bits[list(ids)] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)


def ids_of(mask: Mask) -> npt.NDArray[np.int64]:
    """The ids that a mask allows."""
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
