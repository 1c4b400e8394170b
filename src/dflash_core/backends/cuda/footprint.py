"""Predicts the bytes of weights and of a sequence on a card: the code that loads them runs with meta tensors."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

from dflash_core.arch.spec import ModelSpec
from dflash_core.backends.cuda.activations import DEFAULT, Activations
from dflash_core.backends.cuda.drafters.base import OnDevice, on_device
from dflash_core.backends.cuda.layers.embedding import TABLE, TOKENS
from dflash_core.backends.cuda.library import WORKSPACE_BYTES
from dflash_core.backends.cuda.meta import MetaDevice, Pieces, reserved
from dflash_core.backends.cuda.plan import Card
from dflash_core.backends.cuda.sequence import CAPACITIES, SequenceMemory
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.backends.cuda.upload import Upload, aligned
from dflash_core.cache_types import F16, CachePair
from dflash_core.drafters.base import DraftModel
from dflash_core.expert_places import tensors_on_host
from dflash_core.fits import PREFILL_ROWS
from dflash_core.formats.weights import WeightFile
from dflash_core.memory import HostExperts

# A card's bandwidth over that of its bus: nominally 1,008 and 32 GB/s of an RTX 4090, 3,350 and 64 GB/s of an H100. An
# estimate, in use until passes were timed.
BUS_COST = 40


@dataclass(frozen=True, slots=True)
class SequenceBytes:
    """`components`: bytes of a sequence by component. `scratch`: everything else that the allocator reserves for the
    sequence. `details`: what a component consists of."""

    components: Mapping[str, int]
    scratch: int
    details: Mapping[str, str]


class Footprint:
    """The memory of a target on a card, and of its drafter after `add_draft`. Raises UnsupportedError for tensor types
    without a kernel, and for shapes that need more shared memory than the card has."""

    def __init__(
        self,
        file: WeightFile,
        spec: ModelSpec,
        card: Card,
        activations: Activations = DEFAULT,
        *,
        embedding_on_host: bool = False,
        host_layers: int = 0,
        cached: int = 0,
    ) -> None:
        """`host_layers`: how many of the last layers with experts have them in main memory; `cached`: how many experts
        of each of these the card caches."""
        self._device, self._activations = MetaDevice(card), activations
        upload = Upload(file, pinned=tensors_on_host(spec, host_layers))
        self.target = DeviceTarget(self._device, upload, spec, activations, embedding_on_host=embedding_on_host)
        self.host_bytes, self.tokens_bytes = upload.host_bytes, _by_token(file)
        for mixer in self.target.mixers:
            mixer.check()
        self._draft: OnDevice | None = None
        for layer in self.target.experts:
            layer.slots = cached * layer.on_host
        self.host_experts = self.experts_on_host(host_layers, cached)
        self.target_bytes, self.draft_bytes = upload.nbytes + self.host_experts.cached_bytes, 0

    def experts_on_host(self, layers: int, cached: int = 0) -> HostExperts:
        """The experts of the last `layers` layers that have any, of which the card caches `cached` each."""
        moved = self.target.experts[len(self.target.experts) - layers :]
        nbytes, in_slots = sum(one.routed_bytes for one in moved), sum(one.cached_bytes(cached) for one in moved)
        return HostExperts(layers, nbytes, cached, in_slots)

    def weights(self, *, on_host: bool, host_layers: int = 0, cached: int = 0) -> int:
        """Bytes of the target's weights on the card, with the token embedding, and the experts of the last
        `host_layers` layers that have any, in host memory or on the card; `cached` as of `experts_on_host`."""
        own, other = self.host_experts, self.experts_on_host(host_layers, cached)
        moved = own.bytes - other.bytes + other.cached_bytes - own.cached_bytes
        return self.target_bytes + self.tokens_bytes * (bool(self.host_bytes) - on_host) + moved

    def add_draft(self, file: WeightFile, config: DraftModel, requantise: str = "") -> None:
        upload = Upload(file, requantise)
        self._draft = on_device(config, upload, self.target, self._activations)
        self.draft_bytes = upload.nbytes

    def with_draft(self, file: WeightFile, config: DraftModel, requantise: str = "") -> Footprint:
        """A copy for the same target with this drafter."""
        other = copy.copy(self)
        other.add_draft(file, config, requantise)
        return other

    def more_bytes(self, rows: int) -> float:
        """Weight bytes that a pass of `rows` rows reads, divided by those that a pass of one row reads. Bytes of main
        memory count BUS_COST times."""
        read = (
            self.target_bytes - self.target.idle_bytes(count) + BUS_COST * self.target.bus_bytes(count)
            for count in (rows, 1)
        )
        return next(read) / next(read)

    def sequence(
        self,
        context: int,
        *,
        drafted: bool,
        capacity: int = CAPACITIES[-1],
        kv: CachePair = F16,
        rows: int = PREFILL_ROWS,
    ) -> SequenceBytes:
        """The memory of a sequence of `context` positions and trees of `capacity` nodes, with or without the drafter.
        `rows`: rows of prompt chunks."""
        draft = self._draft if drafted else None
        captured = draft.capabilities.captured_layers if draft else ()
        with Pieces() as pieces:
            memory = SequenceMemory(self.target, context, captured, draft, kv, rows, capacity)
        components = memory.nbytes
        taken = reserved([*pieces.sizes, *([WORKSPACE_BYTES] if memory.chunk else [])])
        return SequenceBytes(components, taken - sum(components.values()), memory.details)


def _by_token(file: WeightFile) -> int:
    """Bytes of the tensors of which a token needs a row."""
    return sum(aligned(file.tensors[name].n_bytes) for name in (TOKENS, TABLE) if name in file.tensors)
