"""A drafter's reduced vocabulary on a card: which of the target's tokens its head's rows are."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dflash_core.backends.cuda.launch import NO_INPUTS, Inputs
from dflash_core.backends.cuda.layers.base import Upload
from dflash_core.config import DraftConfig

_TYPES = {"I32": ("i32", torch.int32), "I64": ("i64", torch.int64)}


class DraftVocabulary:
    """Of a drafter; where it has none, its rows are the target's tokens."""

    def __init__(self, upload: Upload, config: DraftConfig) -> None:
        self.vocab_size, self.offsets, self._ids = config.vocab_size or 0, config.has_offsets, None
        if config.heads.draft_vocab:
            self._type, self._ids = upload.raw("d2t")

    @property
    def inputs(self) -> Inputs:
        """What the kernel of candidates is compiled for and given besides."""
        if self._ids is None:
            return NO_INPUTS
        return {"TARGETS": _TYPES[self._type][0], **({"OFFSETS": 1} if self.offsets else {})}, [self._ids]

    def spread(self, logits: Tensor) -> Tensor:
        """Scores of its first rows (n, rows) as those of the target's tokens (n, vocab): -inf for all others."""
        if self._ids is None:
            return logits
        ids = self._ids.flatten().view(_TYPES[self._type][1]).cpu().long()
        ids = ids + torch.arange(len(ids)) if self.offsets else ids
        full = logits.new_full((len(logits), self.vocab_size), -math.inf)
        full[:, ids[: logits.shape[1]]] = logits
        return full
