"""Block drafters (DFlash, DFlash 2, DSpark): headers, and code shared by the backends."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dflash_core.config import DraftConfig, check_pair, draft_tokens, paired
from dflash_core.drafters.base import Draft, DraftLogits, DraftTarget
from dflash_core.drafters.capabilities import BLOCK_KNOBS, ON_DEVICE, Capabilities
from dflash_core.drafters.dflash_file import open_drafter
from dflash_core.errors import MismatchError
from dflash_core.formats.weights import WeightFile
from dflash_core.progress import Progress, silent

if TYPE_CHECKING:
    import torch


def capabilities(config: DraftConfig, *, on_device: bool = False) -> Capabilities:
    """The capabilities of a drafter with this config."""
    knobs = BLOCK_KNOBS | {"by_parent"} if config.heads.conditional else BLOCK_KNOBS
    knobs |= ON_DEVICE if on_device else frozenset()
    return Capabilities(config.kind, 1 + config.depths, on_device, tuple(config.target_layers), knobs)


@dataclass(frozen=True, slots=True)
class OpenedDFlash:
    """Implements `drafters.base.OpenedDraft`. `config` and `mask_token` are resolved for this target."""

    target: DraftTarget
    config: DraftConfig
    mask_token: int
    file: WeightFile
    notes: tuple[str, ...]

    @property
    def capabilities(self) -> Capabilities:
        return capabilities(self.config)

    @property
    def files(self) -> tuple[WeightFile, ...]:
        return (self.file,)

    def load(self, *, dtype: torch.dtype | None = None, progress: Progress | None = None) -> Draft:
        import torch

        (progress or silent)("loading the drafter", 0.0)
        return self.target.load_dflash(self, dtype or torch.float32)


def open_dflash(path: str | Path, target: DraftTarget) -> OpenedDFlash:
    """Read a header, and the token list if there is one. Raises FormatError, UnsupportedError, MismatchError."""
    config, file = open_drafter(path)
    notes = check_pair(target.config, config, target.mask_token_id)
    if config.heads.draft_vocab:
        draft_tokens(config, file)  # checked here: backends use each as a token of the target
    config = paired(target.config, config, target.mask_token_id)
    assert config.mask_token_id is not None, "check_pair lets no pair without one pass"
    return OpenedDFlash(target, config, config.mask_token_id, file, notes)


def checked_features(features: DraftLogits, config: DraftConfig) -> DraftLogits:
    """Features of a context, contiguous. Raises MismatchError for a shape other than (positions, width)."""
    width = len(config.target_layers) * config.embedding_length
    array: DraftLogits = np.ascontiguousarray(features)
    if array.ndim != 2 or array.shape[1] != width or not len(array):
        raise MismatchError(f"features of shape {array.shape}; this drafter expects (positions, {width})")
    return array
