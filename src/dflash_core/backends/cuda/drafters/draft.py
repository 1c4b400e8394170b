"""A loaded drafter on a card: it proposes inside the step and can share the target's embedding and head."""

from __future__ import annotations

from dflash_core.backends.base import Logits
from dflash_core.backends.cuda.drafters.base import OnDevice
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.drafters.base import DraftModel, LoadedModel, OpenedModel
from dflash_core.drafters.dflash import checked_features
from dflash_core.ids import check_ids


class CudaDraft(LoadedModel[DraftModel]):
    """Implements `drafters.base.Draft`."""

    def __init__(
        self, opened: OpenedModel[DraftModel], model: OnDevice, device_target: DeviceTarget, weight_bytes: int
    ) -> None:
        super().__init__(opened, weight_bytes)
        self.model, self._device_target = model, device_target
        self.capabilities = model.capabilities

    def _session(self, context: int) -> CudaSession:
        return CudaSession(self._device_target, self.model, context=context)

    def logits(self, features: Logits, anchor: int) -> Logits:
        return self._behind(features, anchor).draft(int(anchor), 0)

    def _behind(self, features: Logits, anchor: int) -> CudaSession:
        """A session that has seen a context."""
        spec = self._device_target.spec
        array = checked_features(features, len(self.capabilities.captured_layers) * spec.embedding_length)
        check_ids([anchor], spec.vocab_size)
        session = self._session(len(array))
        session.observe(array)
        return session
