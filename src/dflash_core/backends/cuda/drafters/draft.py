"""Loaded drafters on a card: they propose inside the step and can share the target's embedding and head."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from dflash_core.backends.base import Logits
from dflash_core.backends.cuda.drafters.base import OnDevice
from dflash_core.backends.cuda.drafters.mtp import Mtp
from dflash_core.config import DraftConfig
from dflash_core.drafters.base import DraftLogits
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.drafters.dflash import checked_features
from dflash_core.drafters.mtp import OpenedMtp
from dflash_core.errors import MismatchError
from dflash_core.formats.weights import WeightFile
from dflash_core.ids import check_ids

if TYPE_CHECKING:
    from dflash_core.backends.cuda.session import CudaSession
    from dflash_core.backends.cuda.target import CudaTarget


@dataclass(frozen=True, slots=True, eq=False)
class CudaDFlash:
    """A loaded DFlash drafter: implements `drafters.base.Draft`."""

    file: WeightFile
    config: DraftConfig
    model: OnDevice
    target: CudaTarget
    weight_bytes: int  # on the card
    notes: tuple[str, ...] = ()

    @property
    def capabilities(self) -> Capabilities:
        return self.model.capabilities

    @property
    def files(self) -> tuple[WeightFile, ...]:
        return (self.file,)

    def logits(self, features: Logits, anchor: int) -> Logits:
        return self._behind(features, anchor).draft(int(anchor), 0)

    def _behind(self, features: Logits, anchor: int) -> CudaSession:
        """A sequence with `features` as its context."""
        array = checked_features(features, self.config)
        check_ids([anchor], self.target.config.vocab_size)
        session = self.target.session(self, context=len(array))
        session.observe(array)
        return session


class CudaMtp:
    """A loaded MTP head: implements `drafters.base.Draft`."""

    def __init__(self, opened: OpenedMtp, model: OnDevice, target: CudaTarget, weight_bytes: int) -> None:
        """`weight_bytes`: bytes of the weights on the card."""
        self.file, self.notes, self.model, self.target = opened.file, opened.notes, model, target
        self.weight_bytes, self.config = weight_bytes, opened.config

    @property
    def capabilities(self) -> Capabilities:
        return self.model.capabilities

    @property
    def files(self) -> tuple[WeightFile, ...]:
        return (self.file,)

    def logits(self, features: DraftLogits, anchor: int) -> DraftLogits:
        raise MismatchError("an MTP head reads tokens and features; expected a drafter that reads features alone")

    def teacher_forced(self, tokens: Sequence[int], outputs: Logits) -> Logits:
        """Logits (n - 1, vocab) for n tokens and the outputs (n, hidden) of the target's last layer."""
        session = self.target.session(self, context=len(tokens))
        drafter = session.drafter
        assert isinstance(drafter, Mtp), "the session's drafter is not an MTP head"
        rows = []
        with session.device.stream():
            for at, (token, root) in enumerate(itertools.pairwise(tokens)):
                drafter.follow(token, torch.from_numpy(outputs[at]))
                rows.append(drafter.chain(root, 1, None, session.head, session.launch))
        return np.concatenate(rows)
