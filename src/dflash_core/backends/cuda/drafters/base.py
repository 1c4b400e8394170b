"""The interface between a sequence on a card and a drafter that proposes inside its steps.

An `OnDevice` is a loaded drafter. A `DeviceDrafter` is its part of one sequence: the launches that it adds to the
step's graph, the memory that it owns, and the target layers that it captures. A drafter on the host has none of these;
see drafters/base.py of the core.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from dflash_core.backends.base import Logits
from dflash_core.backends.cuda.captured import CapturedLayers
from dflash_core.backends.cuda.chunk import Chunk
from dflash_core.backends.cuda.device_state import DeviceState
from dflash_core.backends.cuda.kv import KVCache
from dflash_core.backends.cuda.launch import Inputs, Launch
from dflash_core.backends.cuda.layers.embedding import Embedding
from dflash_core.backends.cuda.layers.head import Head
from dflash_core.backends.cuda.products import Arena, TensorSpec
from dflash_core.backends.cuda.projection import AnyProjection, Projection
from dflash_core.backends.cuda.rings import Empty
from dflash_core.cache_types import F16, CachePair
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.knobs import Knobs
from dflash_core.tree import Candidates

# Binds the launches once per key and runs them.
Launcher = Callable[[tuple[object, ...], Callable[[], list[Launch]]], None]


@dataclass(frozen=True, slots=True)
class TargetSequence:
    """What a drafter uses of the target's part of a sequence. `captured`: the outputs of the layers that it names;
    `keys`: of a layer's index, the cache of its keys and values, and the layer's place in it. `reaches`: whether the
    target's caches of a sequence of so many positions (second) hold all that a row after fewer (first) sees."""

    embedding: Embedding
    captured: CapturedLayers
    state: DeviceState
    keys: Callable[[int], tuple[KVCache, int]]
    reaches: Callable[[int, int], bool]


class DraftMemory(Protocol):
    """The memory that a drafter needs for a sequence, in addition to its weights."""

    @property
    def nbytes(self) -> Mapping[str, int]:
        """Bytes of the sequence's state, by component of the memory breakdown."""


class ChunkDrafter(Protocol):
    """A drafter's part of a chunk of a prompt."""

    def capture(self, layer: int, n: int) -> None:
        """Called after the target's embedding and each layer, with `n` rows of the residual in the chunk."""

    def update_cache(self, n: int) -> None:
        """Called when the chunk's rows are committed: add them to the drafter's cache."""


class DeviceDrafter(Protocol):
    """A drafter over one sequence. Committed positions are pending until they are in its cache."""

    @property
    def block(self) -> int:
        """Positions of a draft, including the anchor: the most that a step commits."""

    @property
    def pending(self) -> int:
        """Committed positions that are not in the cache."""

    @property
    def max_pending(self) -> int:
        """The most positions that may be pending."""

    def update_launches(self, rows: int, row0: int = 0) -> list[Launch]:
        """Add the pending rows row0..row0 + rows to the cache."""

    def passes(self, knobs: Knobs) -> int:
        """How many passes of its model a draft needs with these settings, one after the other."""

    def propose_launches(self, head: Head, passes: int) -> list[Launch]:
        """The drafter's part of a step: add what the last step committed to the cache, and write ranked candidates
        where tree_build reads them."""

    @property
    def tree_inputs(self) -> Inputs:
        """More defines and arguments of tree_build after `propose_launches`."""

    def pairs(self, root: int, knobs: Knobs, at: int | None, head: Head, launch: Launcher) -> Candidates | None:
        """What a step proposes after the first `at` positions, each candidate scored given its parent; None if the
        drafter has no such scores. The state does not change."""

    def commit_launches(self, width: int) -> list[Launch]:
        """Make an accepted path of up to `width` nodes pending."""

    def drain_launches(self) -> list[Launch]:
        """Add everything that may be pending to the cache, after the steps that are queued."""

    def update_cache(self, launch: Launcher) -> None:
        """Add all committed positions to the cache."""

    def observe(self, features: Tensor, launch: Launcher) -> None:
        """Commit n positions with the features (n, captured layers * hidden)."""

    def logits(self, root: int, window: int, at: int | None, head: Head, launch: Launcher) -> Logits:
        """Logits (block - 1, vocab) after the first `at` positions, or all of them. The state does not change."""

    def checkpoint(self, empty: Empty) -> object:
        """State that truncating the cache cannot restore, in host memory that `empty` allocates; nothing may be
        pending."""

    def checkpoint_sizes(self) -> Sequence[int]:
        """Bytes of the tensors that `checkpoint` would allocate."""

    def reaches(self, length: int) -> bool:
        """Whether its cache can be truncated to `length` positions without a checkpoint."""

    def restore(self, saved: object, length: int) -> None:
        """Called before the committed length becomes `length`; `saved` is the checkpoint made there. 0: a new sequence
        begins."""

    def positions(self, begin: int, end: int) -> tuple[Tensor, ...]:
        """The per-position state of begin..end in its stored form; nothing may be pending."""

    def saved_of(self, length: int, tensors: Sequence[Tensor]) -> object:
        """The result of `checkpoint` after `length` positions, built from its tensors. Raises SnapshotError."""

    def tensors_of(self, saved: object) -> tuple[Tensor, ...]:
        """The tensors of a result of `checkpoint`."""

    def resume(self, saved: object, length: int) -> None:
        """Turn an empty cache into that of a sequence of `length` positions, in stream order and without what
        `positions` gives; `saved`: the checkpoint made there."""

    def begin_turn(self) -> None:
        """Called when an answer begins; later, drafts may be repeated from any of its positions."""

    def before_step(self, queued: int) -> None:
        """Called before a step is queued behind `queued` others whose results the host has not read yet."""

    def chunk(self, chunk: Chunk) -> ChunkDrafter:
        """The drafter's part of prompts that are processed in `chunk`."""


class OnDevice(Protocol):
    """A loaded drafter on a card."""

    @property
    def capabilities(self) -> Capabilities: ...

    def pass_buffers(self, context: int, kv: CachePair = F16) -> Sequence[TensorSpec]:
        """Scratch memory of its passes."""

    def own_buffers(self) -> Sequence[TensorSpec]:
        """Memory that others must not use between passes, such as rows that are pending."""

    def memory(self, context: int, arena: Arena, own: Arena, kv: CachePair = F16) -> DraftMemory:
        """Memory of a sequence of `context` positions: allocated, or only counted on a device without memory.

        `arena`: holds `pass_buffers`; the target's passes use it too. `own`: holds `own_buffers`. `kv`: the types of
        keys and values in layers that see the whole context.
        """

    def drafter(self, memory: DraftMemory, sequence: TargetSequence) -> DeviceDrafter:
        """The drafter's part of a new sequence."""

    def projections(self) -> Sequence[AnyProjection]:
        """Every matrix product of its part of a step, without the head, which is the target's."""

    def chunk_projections(self) -> Sequence[Projection]:
        """The matrices that a chunk of a prompt is multiplied by."""

    def chunk_buffers(self, rows: int) -> Sequence[Sequence[TensorSpec]]:
        """Memory that a chunk of `rows` rows needs in the arena."""

    def chunk_lasting(self, rows: int) -> Sequence[TensorSpec]:
        """Memory that a chunk needs outside the arena, because it lasts from layer to layer: `Chunk.lasting`."""
