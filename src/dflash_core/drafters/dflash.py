"""Block drafters (DFlash, DFlash 2, DSpark): headers, and code shared by the backends."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dflash_core.config import DraftConfig, check_pair, draft_tokens, mask_token, paired
from dflash_core.drafters.base import DraftLogits, DraftTarget, OpenedModel
from dflash_core.drafters.capabilities import BLOCK_KNOBS, ON_DEVICE, Capabilities
from dflash_core.drafters.dflash_file import open_drafter
from dflash_core.errors import MismatchError


def capabilities(config: DraftConfig, *, on_device: bool = False) -> Capabilities:
    """The capabilities of a drafter with this config."""
    knobs = BLOCK_KNOBS | {"by_parent"} if config.heads.conditional else BLOCK_KNOBS
    knobs |= ON_DEVICE if on_device else frozenset()
    return Capabilities(config.kind, 1 + config.depths, on_device, tuple(config.target_layers), knobs)


def open_dflash(path: str | Path, target: DraftTarget) -> OpenedModel[DraftConfig]:
    """Read a header, and the token list if there is one. Raises FormatError, UnsupportedError, MismatchError."""
    config, file = open_drafter(path)
    mask = mask_token(target.file)
    notes = check_pair(target.config, config, mask)
    if config.heads.draft_vocab:
        draft_tokens(config, file)  # checked here: backends use each as a token of the target
    config = paired(target.config, config, mask)
    return OpenedModel(target, config, file, capabilities(config), notes)


def checked_features(features: DraftLogits, width: int) -> DraftLogits:
    """Features of a context, contiguous. Raises MismatchError for a shape other than (positions, width)."""
    array: DraftLogits = np.ascontiguousarray(features)
    if array.ndim != 2 or array.shape[1] != width or not len(array):
        raise MismatchError(f"features of shape {array.shape}; this drafter expects (positions, {width})")
    return array
