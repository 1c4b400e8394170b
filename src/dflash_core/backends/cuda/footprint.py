"""Bytes that weights and a sequence will take on a card: the same code builds them, of tensors without memory."""

from __future__ import annotations

from dataclasses import dataclass

from dflash_core.arch.spec import ModelSpec
from dflash_core.backends.cuda.buffers import PASS_ROWS, PREFILL_ROWS, ChunkBuffers, DraftBuffers, TargetBuffers
from dflash_core.backends.cuda.gdn import DeltaLaunch
from dflash_core.backends.cuda.head import Head
from dflash_core.backends.cuda.meta import MetaDevice, MetaUpload
from dflash_core.backends.cuda.model import DeviceDraft, DeviceTarget
from dflash_core.backends.cuda.plan import Card
from dflash_core.backends.cuda.prefill import ChunkPass
from dflash_core.config import DraftConfig
from dflash_core.formats.weights import WeightFile


@dataclass(frozen=True, slots=True)
class SequenceBytes:
    """What a sequence owns, and the scratch memory that its passes share."""

    kv: int
    draft_kv: int
    states: int
    scratch: int


class Footprint:
    """Of a target on a card, and of its drafter once `add_draft` was called. Raises UnsupportedError for tensor types
    without a kernel, and for shapes that the card has too little shared memory for."""

    def __init__(self, file: WeightFile, config: ModelSpec, card: Card, half: bool = False) -> None:
        self._device, self._half = MetaDevice(card), half
        upload = MetaUpload(file)
        self._target = DeviceTarget(self._device, upload, config, half)
        DeltaLaunch.of(self._target.delta, PASS_ROWS, card.shared_bytes)
        self._draft: DeviceDraft | None = None
        self.target_bytes, self.draft_bytes = upload.nbytes, 0

    def add_draft(self, file: WeightFile, config: DraftConfig, requantise: str = "") -> None:
        upload = MetaUpload(file, requantise)
        self._draft = DeviceDraft(self._device, upload, config, self._half)
        self.draft_bytes = upload.nbytes

    def sequence(self, context: int, *, drafted: bool, capacity: int = PASS_ROWS) -> SequenceBytes:
        """For `context` positions and trees of `capacity` nodes, with the drafter or without."""
        draft = self._draft if drafted else None
        taps = draft.config.target_layers if draft else ()
        buffers = TargetBuffers(self._target, context, capacity, tuple(taps))
        scratch, room = buffers.scratch_bytes + buffers.delta.row_bytes, None
        draft_kv = 0
        if draft is not None:
            drafting = DraftBuffers(draft, context)
            draft_kv, scratch = drafting.kv.nbytes, scratch + drafting.scratch_bytes
        if ChunkPass.possible(self._target):
            chunk = ChunkBuffers(self._target, min(PREFILL_ROWS, context), draft)
            scratch, room = scratch + chunk.nbytes, chunk.weights
        scratch += Head(self._target, None, room).nbytes
        return SequenceBytes(buffers.kv.nbytes, draft_kv, buffers.delta.state_bytes, scratch)
