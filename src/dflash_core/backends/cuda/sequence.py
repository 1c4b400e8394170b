"""The memory of one sequence on a card. All of it is allocated once: graphs hold its addresses.

Passes, a drafter's passes and chunks of prompts never run at the same time, and none needs what another left in scratch
memory. So they share one arena, whose size is that of the largest of them. Only rows that wait for their commit must
survive a drafter's pass; when a chunk begins, no commit is pending. Memory that belongs to one of them alone follows
the shared part.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dflash_core.attention_window import EVERYTHING, AttentionWindow
from dflash_core.backends.cuda.captured import CapturedLayers
from dflash_core.backends.cuda.chunk import Chunk, ChunkNeeds
from dflash_core.backends.cuda.device_state import DeviceState
from dflash_core.backends.cuda.device_text import DeviceText
from dflash_core.backends.cuda.drafters.base import DraftMemory, OnDevice
from dflash_core.backends.cuda.layers.base import MixerMemory, PassBuffers
from dflash_core.backends.cuda.layers.head import Head
from dflash_core.backends.cuda.library import WORKSPACE_BYTES
from dflash_core.backends.cuda.products import Arena
from dflash_core.backends.cuda.projection import Projection
from dflash_core.backends.cuda.state import MAX_NODES, PASS_ROWS, STAMPS
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.cache_types import F16, CachePair
from dflash_core.fits import PREFILL_ROWS

# Tree sizes in nodes that memory is allocated for: first the default settings' tree, then one pass, then the largest.
CAPACITIES = (24, PASS_ROWS, MAX_NODES)


def capacity_for(nodes: int) -> int:
    """The smallest capacity that holds trees of `nodes` nodes."""
    return next(capacity for capacity in CAPACITIES if capacity >= nodes)


class SequenceMemory:
    """The memory of a target and its drafter for `context` positions, at first for the smallest trees.

    mixers: the sequence's state, by the target's groups of layers. buffers: scratch memory of passes. captured: outputs
    of chosen layers. drafting: the drafter's own memory. chunk: memory of prompt chunks, if the card supports them.
    idle: the part of the arena that only chunks use. head: logits. text: the text that trees copy from, if they do.
    `slots`: how many positions and nodes fit. `kv`: the types of cached keys and values. `rows`: the most rows of a
    prompt chunk.
    """

    def __init__(
        self,
        target: DeviceTarget,
        context: int,
        captured: Sequence[int],
        draft: OnDevice | None = None,
        kv: CachePair = F16,
        rows: int = PREFILL_ROWS,
    ) -> None:
        device, hidden = target.device.torch_device, target.spec.embedding_length
        capacity = CAPACITIES[0]
        self.capacity, self.slots = capacity, context + MAX_NODES
        partials = PassBuffers.partials(*target.projections())
        rooms = [mixer.pass_room(context, kv) for mixer in target.mixers]
        rooms += [block.ffn.pass_room for block in target.blk]
        turn = Arena.need(partials) + max(map(Arena.need, rooms))
        turn = max(turn, Arena.need(draft.pass_room(context, kv)) if draft else 0, Arena.need(Head.pieces(target)))
        passes = turn + sum(Arena.need(mixer.rows_room(capacity)) for mixer in target.mixers)
        chunk = chunk_needs(target, min(rows, context), draft, context, kv) if target.chunked else None
        shared = max(passes, Arena.need(chunk.pieces) if chunk else 0)
        buffers = PassBuffers.lasting(hidden, *target.projections())
        lasting = [*buffers, *CapturedLayers.pieces(captured, hidden, capacity)]
        own = Arena.need([*lasting, *(draft.own_room() if draft else ())])
        self.room = Arena.of(shared + own, device)
        lasting_room = Arena(self.room.bytes[shared:])
        self.buffers = PassBuffers(hidden, *target.projections(), lasting_room, self.room)
        inside, left = self.room.after(*partials), Arena(self.room.bytes[turn:])
        self.mixers: list[MixerMemory] = []
        for mixer in target.mixers:
            self.mixers.append(mixer.memory(context, capacity, inside, left, kv))
            left = left.after(*mixer.rows_room(capacity))
        self.captured = CapturedLayers(captured, hidden, capacity, lasting_room.after(*buffers))
        self._first = tuple(self.mixers), self.captured.rows, capacity
        own_room = lasting_room.after(*lasting)
        self.drafting: DraftMemory | None = draft.memory(context, self.room, own_room, kv) if draft else None
        self.chunk = Chunk(target.device, chunk, self.room) if chunk else None
        self.idle = Arena(self.room.bytes[passes:shared])
        self.one = torch.ones(1, dtype=torch.int32, device=device)  # the count of a single row
        self.state = DeviceState(device)
        # Logits may share the arena: they are written after the layers and read before the next pass begins.
        self.head = Head(target, self.state, self.room)
        copies = draft is not None and "by_parent" not in draft.capabilities.knobs
        self.text = DeviceText(self.slots, target.device) if copies else None
        self.stamps = torch.zeros(STAMPS, dtype=torch.int64, device=device)
        # How many of the last and of the first positions attention sees.
        self.window = torch.zeros(2, dtype=torch.int32, device=device)

    def grow(self, nodes: int) -> None:
        """Allocate memory for trees of `nodes` nodes; committed states stay, rows of the last pass are lost."""
        capacity = capacity_for(nodes)
        # Allocate everything before any change: if the card is full, trees of the previous size still work.
        mixers = [memory.grown(capacity) for memory in self.mixers]
        rows = self.captured.room(capacity)
        self.mixers, self.captured.rows, self.capacity = mixers, rows, capacity

    def shrink(self) -> None:
        """Return to the sizes allocated at first; no commit may be pending."""
        mixers, self.captured.rows, self.capacity = self._first
        self.mixers = list(mixers)

    @property
    def nbytes(self) -> dict[str, int]:
        """The sequence's own bytes, by component."""
        held: dict[str, int] = {}
        for memory in self.mixers:
            held[memory.component] = held.get(memory.component, 0) + memory.nbytes
        return {**held, **(self.drafting.nbytes if self.drafting else {})}

    @property
    def details(self) -> dict[str, str]:
        """Details of the components that have any."""
        return {memory.component: memory.detail for memory in self.mixers if memory.detail}


def chunk_results(
    target: DeviceTarget, rows: int, end: int, kv: CachePair, window: AttentionWindow = EVERYTHING
) -> Sequence[int]:
    """Bytes of each piece that torch allocates while a chunk of `rows` rows that ends at the position `end` runs.
    WORKSPACE_BYTES, which the library keeps, come on top."""
    return max((mixer.chunk_results(rows, end, kv, window) for mixer in target.mixers), key=sum)


def library_pieces(
    memory: SequenceMemory, target: DeviceTarget, context: int, kv: CachePair, window: AttentionWindow
) -> Sequence[int]:
    """Bytes of each piece that chunks of prompts allocate in torch, in addition to `memory`, at the end of `context`
    positions: the library's workspace and intermediate results."""
    if memory.chunk is None:
        return ()
    return [WORKSPACE_BYTES, *chunk_results(target, memory.chunk.rows, context, kv, window)]


def chunk_needs(target: DeviceTarget, rows: int, draft: OnDevice | None, context: int, kv: CachePair) -> ChunkNeeds:
    """The memory that a target and its drafter need to process prompts in chunks of at most `rows` rows."""
    inputs, outputs = target.projections()
    projections = [p for p in (*inputs, *outputs) if isinstance(p, Projection)]  # multiplied by the library
    projections += [*(draft.chunk_projections() if draft else ())]
    rooms = [room for mixer in target.mixers for room in mixer.chunk_rooms(rows, context, kv)]
    rooms += [room for block in target.blk for room in block.ffn.chunk_rooms(rows)]
    rooms += draft.chunk_rooms(rows) if draft else ()
    lasting = draft.chunk_lasting(rows) if draft else ()
    return ChunkNeeds(rows, target.spec.embedding_length, projections, rooms, lasting)
