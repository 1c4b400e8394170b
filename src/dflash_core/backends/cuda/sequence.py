"""The memory of one sequence on a card. All of it is allocated once: graphs hold its addresses."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dflash_core.backends.cuda.captured import CapturedLayers
from dflash_core.backends.cuda.layers.base import MixerMemory, PassBuffers
from dflash_core.backends.cuda.state import MAX_NODES
from dflash_core.backends.cuda.target_model import DeviceTarget


class SequenceMemory:
    """What a target's passes need for `context` positions and trees of up to `capacity` nodes.

    mixers: what is kept of the sequence, by the target's groups of layers. buffers: scratch. captured: outputs of
    chosen layers. `slots`: positions and nodes that there is room for.
    """

    def __init__(self, target: DeviceTarget, context: int, capacity: int, captured: Sequence[int]) -> None:
        device, hidden = target.device.torch_device, target.spec.embedding_length
        self.capacity, self.slots = capacity, context + MAX_NODES
        self.mixers: list[MixerMemory] = [mixer.memory(context, capacity) for mixer in target.mixers]
        self.buffers = PassBuffers(device, hidden, *target.projections())
        self.captured = CapturedLayers(captured, hidden, capacity, device)
        self.one = torch.ones(1, dtype=torch.int32, device=device)  # the count of a single row

    def grow(self, capacity: int) -> None:
        """Room for larger trees; committed states stay, rows of the last pass do not."""
        # All of it before anything changes: where the card is full, trees of the size there was still go.
        mixers = [memory.grown(capacity) for memory in self.mixers]
        rows = self.captured.room(capacity, self.one.device)
        self.mixers, self.captured.rows, self.capacity = mixers, rows, capacity

    @property
    def nbytes(self) -> dict[str, int]:
        """The sequence's own bytes, by component."""
        held: dict[str, int] = {}
        for memory in self.mixers:
            held[memory.component] = held.get(memory.component, 0) + memory.nbytes
        return held

    @property
    def details(self) -> dict[str, str]:
        """What a component is made of, where that is worth saying."""
        return {memory.component: memory.detail for memory in self.mixers if memory.detail}

    @property
    def scratch_bytes(self) -> int:
        return self.buffers.nbytes + self.captured.rows.nbytes + sum(memory.scratch_bytes for memory in self.mixers)
