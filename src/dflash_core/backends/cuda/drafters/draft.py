"""The DFlash drafter on a card: it proposes inside the step, and borrows the target's embedding and head."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash_core.backends.base import Logits
from dflash_core.backends.cuda.drafters.dflash import DFlashOnDevice
from dflash_core.config import DraftConfig
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.drafters.dflash import checked_features
from dflash_core.formats.weights import WeightFile
from dflash_core.ids import check_ids

if TYPE_CHECKING:
    from dflash_core.backends.cuda.target import CudaTarget


class CudaDFlash:
    """A loaded DFlash drafter: implements `drafters.base.Draft`."""

    def __init__(
        self,
        file: WeightFile,
        config: DraftConfig,
        model: DFlashOnDevice,
        target: CudaTarget,
        weight_bytes: int,
        notes: tuple[str, ...] = (),
    ) -> None:
        """`weight_bytes`: what the weights take on the card."""
        self.file, self.config, self.model, self.target = file, config, model, target
        self.weight_bytes, self.notes = weight_bytes, notes

    @property
    def capabilities(self) -> Capabilities:
        return self.model.capabilities

    def logits(self, features: Logits, anchor: int) -> Logits:
        array = checked_features(features, self.config)
        check_ids([anchor], self.target.config.vocab_size)
        session = self.target.session(self, context=len(array))
        session.observe(array)
        return session.draft(int(anchor), 0)
