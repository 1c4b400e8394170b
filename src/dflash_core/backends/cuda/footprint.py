"""Bytes that weights and a sequence will take on a card: the same code builds them, of tensors without memory."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

from dflash_core.arch.spec import ModelSpec
from dflash_core.attention_window import EVERYTHING, AttentionWindow
from dflash_core.backends.cuda.activations import DEFAULT, Activations
from dflash_core.backends.cuda.allocator import Pieces, reserved
from dflash_core.backends.cuda.drafters.base import OnDevice
from dflash_core.backends.cuda.drafters.kinds import DeviceConfig, on_device
from dflash_core.backends.cuda.layers.embedding import TOKENS
from dflash_core.backends.cuda.meta import MetaDevice, MetaUpload
from dflash_core.backends.cuda.plan import Card
from dflash_core.backends.cuda.sequence import CAPACITIES, SequenceMemory, library_pieces
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.backends.cuda.upload import aligned
from dflash_core.cache_types import F16, CachePair
from dflash_core.fits import PREFILL_ROWS
from dflash_core.formats.weights import WeightFile


@dataclass(frozen=True, slots=True)
class SequenceBytes:
    """What a sequence owns, by component, and all that the allocator takes besides. `details`: what a component is
    made of."""

    held: Mapping[str, int]
    scratch: int
    details: Mapping[str, str]


class Footprint:
    """Of a target on a card, and of its drafter once `add_draft` was called. Raises UnsupportedError for tensor types
    without a kernel, and for shapes that the card has too little shared memory for."""

    def __init__(
        self,
        file: WeightFile,
        spec: ModelSpec,
        card: Card,
        activations: Activations = DEFAULT,
        *,
        embedding_on_host: bool = False,
    ) -> None:
        self._device, self._activations = MetaDevice(card), activations
        upload = MetaUpload(file)
        self.target = DeviceTarget(self._device, upload, spec, activations, embedding_on_host=embedding_on_host)
        self.host_bytes, self.tokens_bytes = upload.host_bytes, file.tensors[TOKENS].n_bytes
        for mixer in self.target.mixers:
            mixer.check()
        self._draft: OnDevice | None = None
        self.target_bytes, self.draft_bytes = upload.nbytes, 0

    def weights(self, *, on_host: bool) -> int:
        """Bytes of the target's weights on the card, with the token embedding in main memory or not."""
        embedding = aligned(self.tokens_bytes)
        return self.target_bytes + embedding * (bool(self.host_bytes) - on_host)

    def add_draft(self, file: WeightFile, config: DeviceConfig, requantise: str = "") -> None:
        upload = MetaUpload(file, requantise)
        self._draft = on_device(config, upload, self.target, self._activations)
        self.draft_bytes = upload.nbytes

    def with_draft(self, file: WeightFile, config: DeviceConfig, requantise: str = "") -> Footprint:
        """The same target with this drafter."""
        other = copy.copy(self)
        other.add_draft(file, config, requantise)
        return other

    def more_bytes(self, rows: int) -> float:
        """Weights that a pass of so many rows reads, over those that a pass of one reads."""
        read = (self.target_bytes - self.target.idle_bytes(count) for count in (rows, 1))
        return next(read) / next(read)

    def replan(self, card: Card) -> None:
        """Predict for what is known of the card now. A drafter is added after this."""
        self._device.card = card
        for group in self.target.projections():
            for projection in group:
                projection.replan(card)

    def sequence(
        self,
        context: int,
        *,
        drafted: bool,
        capacity: int = CAPACITIES[0],
        kv: CachePair = F16,
        rows: int = PREFILL_ROWS,
        window: AttentionWindow = EVERYTHING,
    ) -> SequenceBytes:
        """For `context` positions and trees of `capacity` nodes, with the drafter or without. Prompts are read in
        chunks of `rows` rows, whose layers of full attention see `window`."""
        draft = self._draft if drafted else None
        captured = draft.capabilities.captured_layers if draft else ()
        with Pieces() as pieces:
            memory = SequenceMemory(self.target, context, captured, draft, kv, rows)
            if capacity > memory.capacity:
                memory.grow(capacity)
        held = memory.nbytes
        taken = reserved([*pieces.sizes, *library_pieces(memory, self.target, context, kv, window)])
        return SequenceBytes(held, taken - sum(held.values()), memory.details)
