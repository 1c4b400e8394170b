"""The memory of one sequence on a card. All of it is allocated once: graphs hold its addresses, and a turn must never
find the card full.

Passes, a drafter's passes and chunks of prompts never run at the same time, and none needs what another left in scratch
memory. So they share one arena, whose size is that of the largest of them. Only rows that wait for their commit must
survive a drafter's pass; when a chunk begins, no commit is pending. Memory of a single owner follows the
shared part.

What torch allocates by itself while a sequence is read or copied, it takes from memory that is reserved for that
(`SequenceMemory.workspace`).

Checkpoints copy what rings still have to the host only when it is about to be overwritten: many checkpoints are dropped
before, and the rows of a large model's windows are hundreds of megabytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakSet

import torch
from torch import Tensor

from dflash_core.backends.cuda.chunk import Chunk, ChunkNeeds
from dflash_core.backends.cuda.device_state import DeviceNgrams, DeviceState
from dflash_core.backends.cuda.drafters.base import DeviceDrafter, OnDevice, TargetSequence
from dflash_core.backends.cuda.kv import SequenceState, Tensors
from dflash_core.backends.cuda.launch import Device
from dflash_core.backends.cuda.layers.base import CapturedLayers, MixerMemory, PassBuffers, SequenceNeeds
from dflash_core.backends.cuda.layers.head import Head
from dflash_core.backends.cuda.meta import MAX_SMALL
from dflash_core.backends.cuda.products import Arena
from dflash_core.backends.cuda.projection import Projection
from dflash_core.backends.cuda.state import MAX_NODES, PASS_ROWS, STAMPS
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.cache_types import F16, CachePair
from dflash_core.fits import MIN_NODES, PREFILL_ROWS
from dflash_core.snapshots.store import PAGE

# Tree sizes in nodes that memory is reserved for, the largest first: whole passes; for the least, the default settings.
CAPACITIES = (*range(MAX_NODES, 0, -PASS_ROWS), MIN_NODES)
DRAFTER_KV = "drafter KV"
SMALL_RESULTS = [MAX_SMALL] * 4  # torch never takes a small result from the memory of a large one


class SequenceMemory:
    """The memory of a target and its drafter for `context` positions and trees of up to `capacity` nodes.

    mixers: the sequence's state, by the target's groups of layers. buffers: scratch memory of passes. captured: outputs
    of chosen layers. drafter: the drafter's part. chunk: memory of prompt chunks, if the card supports them. head:
    logits. given: per-layer inputs. text: the text that trees copy from, if they do. `slots`: how many positions and
    nodes fit. `kv`: the types of cached keys and values. `rows`: the most rows of a prompt chunk.
    """

    def __init__(
        self,
        target: DeviceTarget,
        context: int,
        captured: Sequence[int],
        draft: OnDevice | None = None,
        kv: CachePair = F16,
        rows: int = PREFILL_ROWS,
        capacity: int = MAX_NODES,
    ) -> None:
        """Raises UnsupportedError for a cache type that only the CPU has."""
        device, hidden = target.device.torch_device, target.spec.embedding_length
        projections, several = target.projections(), target.side_by_side
        self.capacity, self.slots = capacity, context + MAX_NODES
        partials = PassBuffers.partials(*projections, side_by_side=several)
        pieces = [mixer.pass_buffers(context, kv) for mixer in target.mixers]
        pieces += [ffn.pass_buffers for ffn in target.feed_forwards]
        scratch = max(
            Arena.need(partials) + max(map(Arena.need, pieces)),
            Arena.need(draft.pass_buffers(context, kv)) if draft else 0,
            Arena.need(Head.pieces(target)),
        )
        passes = scratch + sum(Arena.need(mixer.row_buffers(capacity)) for mixer in target.mixers)
        chunk_rows = min(rows, context) if target.chunked else 0
        chunk = chunk_needs(target, chunk_rows, draft, context, kv) if target.chunked else None
        shared = max(passes, Arena.need(chunk.pieces) if chunk else 0)
        buffers = PassBuffers.lasting(hidden, *projections)
        given = [target.per_layer.piece] if target.per_layer else []
        lasting = [*buffers, *given, *CapturedLayers.pieces(captured, hidden, capacity)]
        own_bytes = Arena.need([*lasting, *(draft.own_buffers() if draft else ())])
        self.arena = Arena.of(shared + own_bytes, device)
        lasting_arena = Arena(self.arena.bytes[shared:])
        self.buffers = PassBuffers(hidden, *projections, lasting_arena, self.arena, side_by_side=several)
        inside, left = self.arena.after(*partials), Arena(self.arena.bytes[scratch:])
        self.mixers: list[MixerMemory] = []
        for mixer, lender in zip(target.mixers, target.lenders, strict=True):
            lent = self.mixers[lender.group].layer(lender.place) if lender else None
            self.mixers.append(mixer.memory(SequenceNeeds(context, capacity, inside, left, kv, lent, chunk_rows)))
            left = left.after(*mixer.row_buffers(capacity))
        self.given = next(lasting_arena.after(*buffers).carve(*given), None)
        self.captured = CapturedLayers(captured, hidden, capacity, lasting_arena.after(*buffers, *given))
        self.state = DeviceState(device)
        places = [(block.group, block.place) for block in target.blk]
        self.target = TargetSequence(target.embedding, self.captured, self.state, self.mixers, places)
        self.drafter: DeviceDrafter | None = None
        if draft is not None:
            self.drafter = draft.drafter(self.target, context, self.arena, lasting_arena.after(*lasting), kv)
        self.chunk = Chunk(target.device, chunk, self.arena) if chunk else None
        self.one = torch.ones(1, dtype=torch.int32, device=device)  # the count of a single row
        # Logits may share the arena: they are written after the layers and read before the next pass begins.
        self.head = Head(target, self.state, self.arena)
        copies = draft is not None and "by_parent" not in draft.capabilities.knobs
        self.text = DeviceNgrams(self.slots, target.device) if copies else None
        self.stamps = torch.zeros(STAMPS, dtype=torch.int64, device=device)
        # How many of the last and of the first positions attention sees.
        self.window = torch.zeros(2, dtype=torch.int32, device=device)
        # A copy of a page of positions to or from the host is first made contiguous on the card.
        pages = [tensor.nbytes for mixer in self.mixers for tensor in mixer.positions(0, min(PAGE, context))]
        of_chunk = max(mixer.chunk_results(chunk.rows, context, kv) for mixer in target.mixers) if chunk else 0
        self._reserve([max([of_chunk, *pages]), *SMALL_RESULTS])

    @property
    def states(self) -> list[SequenceState]:
        """All that checkpoints and snapshots store: of the target's layers, then of the drafter."""
        return [*self.mixers, *([self.drafter.caches] if self.drafter else [])]

    @contextmanager
    def workspace(self) -> Iterator[None]:
        """Inside the context, torch may allocate results of its own: it takes the memory that is reserved for them."""
        sizes = [len(piece) for piece in self._reserved]
        self._reserved.clear()
        try:
            yield
        finally:
            self._reserve(sizes)

    def _reserve(self, sizes: Sequence[int]) -> None:
        self._reserved = [torch.empty(size, dtype=torch.uint8, device=self.one.device) for size in sizes]

    @property
    def nbytes(self) -> dict[str, int]:
        """The sequence's own bytes, by component."""
        sizes: dict[str, int] = {}
        for memory in self.mixers:
            sizes[memory.component] = sizes.get(memory.component, 0) + memory.nbytes
        return {**sizes, DRAFTER_KV: self.drafter.nbytes} if self.drafter else sizes

    @property
    def details(self) -> dict[str, str]:
        """Details of the components that have any."""
        return {memory.component: memory.detail for memory in self.mixers if memory.detail}


def chunk_needs(target: DeviceTarget, rows: int, draft: OnDevice | None, context: int, kv: CachePair) -> ChunkNeeds:
    """The memory that a target and its drafter need to process prompts in chunks of at most `rows` rows."""
    inputs, outputs = target.projections()
    projections = [p for p in (*inputs, *outputs) if isinstance(p, Projection)]  # multiplied by the library
    projections += [*(draft.chunk_projections() if draft else ())]
    pieces = [piece for mixer in target.mixers for piece in mixer.chunk_buffers(rows, context, kv)]
    pieces += [piece for ffn in target.feed_forwards for piece in ffn.chunk_buffers(rows)]
    pieces += draft.chunk_buffers(rows) if draft else ()
    lasting = draft.chunk_lasting(rows) if draft else ()
    # Rows like those of the residual stream: for what branches give, and for their sum.
    own_rows, embedded = 0 if target.plain else 1 + target.side_by_side, target.per_layer is not None
    return ChunkNeeds(rows, target.spec.embedding_length, projections, pieces, lasting, own_rows, embedded)


@dataclass(slots=True, eq=False, weakref_slot=True)
class CudaCheckpoint:
    """The state that cannot be rewound, at `length` positions. saved: of each of the sequence's `states`, in host
    memory; None where rings of the card still have it, until `copy` is called."""

    length: int
    saved: list[Tensors | None]
    copy: Callable[[CudaCheckpoint], None] = lambda point: None

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All of them; copies what is not in host memory yet."""
        self.copy(self)
        return tuple(tensor for saved in self.saved for tensor in saved or ())


class Checkpoints:
    """Checkpoints of a session that rings still have a part of. The drafter's part is copied at once: it is small."""

    def __init__(self, device: Device, memory: SequenceMemory) -> None:
        self._device, self._memory = device, memory
        self._open = WeakSet[CudaCheckpoint]()

    def make(self, length: int) -> CudaCheckpoint:
        """The checkpoint of a sequence of `length` positions, complete once the device is synchronized."""
        later = [state for state in self._memory.mixers if state.like(length) and state.reaches(length, length)]
        empty, states = self._device.host.empty, self._memory.states
        saved = [None if state in later else state.checkpoint(length, empty) for state in states]
        point = CudaCheckpoint(length, saved, self._copy)
        if later:
            self._open.add(point)
        return point

    def before_growing(self, end: int) -> None:
        """Called before the sequence may grow to `end` positions."""
        for point in [*self._open]:
            pairs = zip(point.saved, self._memory.mixers)
            if any(saved is None and not memory.reaches(point.length, end) for saved, memory in pairs):
                self._copy(point)

    def before_cut(self, length: int) -> None:
        """Called before the sequence is truncated to `length` positions: later ones will be overwritten."""
        for point in [*self._open]:
            if point.length > length:
                self._copy(point)

    def _copy(self, point: CudaCheckpoint) -> None:
        if point not in self._open:
            return
        self._open.discard(point)
        with self._device.stream():
            for at, memory in enumerate(self._memory.mixers):
                if point.saved[at] is None:
                    point.saved[at] = memory.checkpoint(point.length, self._device.host.empty)
            self._device.synchronize()
