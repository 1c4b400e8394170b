"""A drafter's reduced vocabulary on a card: the target token of each row of the drafter's head."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dflash_core.backends.cuda.launch import NO_INPUTS, Inputs
from dflash_core.backends.cuda.layers.base import Upload
from dflash_core.config import DraftConfig

_TYPES = {"I32": ("i32", torch.int32), "I64": ("i64", torch.int64)}


class DraftVocabulary:
    """The mapping from a drafter's tokens to the target's; without a reduced vocabulary they are the same."""

    def __init__(self, upload: Upload, config: DraftConfig) -> None:
        self.vocab_size, self.offsets, self._ids = config.vocab_size or 0, config.has_offsets, None
        if config.heads.draft_vocab:
            self._type, self._ids = upload.raw("d2t")

    @property
    def inputs(self) -> Inputs:
        """More defines and arguments of the kernel `candidates`."""
        if self._ids is None:
            return NO_INPUTS
        return {"TARGETS": _TYPES[self._type][0], **({"OFFSETS": 1} if self.offsets else {})}, [self._ids]

    def spread(self, logits: Tensor) -> Tensor:
        """Logits of the first draft tokens (n, rows) as logits of the target's tokens (n, vocab): -inf for the rest."""
        if self._ids is None:
            return logits
        ids = self._ids.flatten().view(_TYPES[self._type][1]).cpu().long()
        ids = ids + torch.arange(len(ids)) if self.offsets else ids
        full = logits.new_full((len(logits), self.vocab_size), -math.inf)
        full[:, ids[: logits.shape[1]]] = logits
        return full
