"""The seam between a sequence on a card and a drafter that proposes inside its steps.

An `OnDevice` is what was loaded, a `DeviceDrafter` its part of one sequence: the launches that it adds to the step's
graph, the memory that it owns, the target layers that it wants captured. A drafter on the host has none of these; see
drafters/base.py of the core.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from torch import Tensor

from dflash_core.backends.base import Logits
from dflash_core.backends.cuda.captured import CapturedLayers
from dflash_core.backends.cuda.chunk import Chunk
from dflash_core.backends.cuda.device_state import DeviceState
from dflash_core.backends.cuda.drafters.caches import Empty
from dflash_core.backends.cuda.launch import Copy, Inputs, Launch
from dflash_core.backends.cuda.layers.embedding import Embedding
from dflash_core.backends.cuda.layers.head import Head
from dflash_core.backends.cuda.products import Arena, Wanted
from dflash_core.backends.cuda.projection import AnyProjection, Projection
from dflash_core.cache_types import F16, CachePair
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.knobs import Knobs
from dflash_core.tree import Candidates

# Binds launches under a key and runs them.
Launcher = Callable[[tuple[object, ...], Callable[[], list[Launch]]], None]


class DraftMemory(Protocol):
    """What a drafter takes for a sequence, in addition to its weights."""

    @property
    def nbytes(self) -> Mapping[str, int]:
        """Bytes of what it keeps of the sequence, by component of the memory breakdown."""


class ChunkDrafter(Protocol):
    """A drafter's part of a prompt's chunk."""

    def capture(self, layer: int, n: int) -> None:
        """Called after the target's embedding and each layer, with `n` rows of the residual in the chunk."""

    def update_cache(self, n: int) -> None:
        """The rows are committed: bring the drafter's cache up to date."""


class DeviceDrafter(Protocol):
    """A drafter over one sequence. What it observes is pending until it is in its cache."""

    @property
    def block(self) -> int:
        """Positions of a draft, the anchor included: what a step commits at most."""

    @property
    def pending(self) -> int:
        """Committed positions that are not in the cache."""

    @property
    def most_pending(self) -> int:
        """How many may be pending."""

    def update_launches(self, rows: int, row0: int = 0) -> list[Launch]:
        """Pending rows row0..row0 + rows enter the cache."""

    def passes(self, knobs: Knobs) -> int:
        """Passes of its model that a draft takes with these knobs, one after the other."""

    def propose_launches(self, head: Head, passes: int) -> list[Launch]:
        """In a step: what the last one committed enters the cache, and ranked candidates come out, where tree_build
        reads them."""

    @property
    def tree_inputs(self) -> Inputs:
        """What tree_build is compiled for and given besides, after `propose_launches`."""

    def pairs(self, root: int, knobs: Knobs, at: int | None, head: Head, launch: Launcher) -> Candidates | None:
        """What a step proposes after the first `at` positions, each candidate scored by the one above it; None where
        the drafter has no such scores. Nothing of the state changes."""

    def commit_launches(self, width: int) -> list[Launch]:
        """An accepted path of up to `width` nodes becomes pending."""

    def drain_launches(self) -> list[Launch]:
        """Everything that may be pending enters the cache, after what is queued."""

    def update_cache(self, launch: Launcher) -> None:
        """Bring the cache up to date with what is committed."""

    def observe(self, features: Tensor, launch: Launcher) -> None:
        """Make rows (n, captured layers * hidden) the features of the next n positions, and these committed."""

    def logits(self, root: int, window: int, at: int | None, head: Head, launch: Launcher) -> Logits:
        """Logits (block - 1, vocab) after the first `at` positions, or all of them. Nothing of the state changes."""

    def checkpoint(self, empty: Empty) -> object:
        """What cutting its cache would not bring back, in host memory that `empty` makes; nothing is pending."""

    def checkpoint_sizes(self) -> Sequence[int]:
        """Bytes of the tensors of what `checkpoint` would make."""

    def reaches(self, length: int) -> bool:
        """Whether its cache can be cut back to `length` positions without a checkpoint."""

    def restore(self, kept: object, length: int) -> None:
        """Before the committed length becomes `length`, where `kept` was made; 0: another sequence begins."""

    def positions(self, begin: int, end: int) -> tuple[Tensor, ...]:
        """What is kept of every position, of begin..end, as it is held; nothing is pending."""

    def kept_of(self, length: int, tensors: Sequence[Tensor]) -> object:
        """What `checkpoint` gave after `length` positions, of its tensors. Raises SnapshotError."""

    def tensors_of(self, kept: object) -> tuple[Tensor, ...]:
        """Those of what `checkpoint` gave."""

    def resume(self, kept: object, length: int) -> Sequence[Copy]:
        """An empty sequence's cache becomes that of one of `length` positions; `kept`: what `checkpoint` gave there.
        What is left to be copied for that, beside its `positions`."""

    def begin_turn(self) -> None:
        """An answer begins; later it may be drafted again from any of its positions."""

    def before_step(self, queued: int) -> None:
        """A step is about to be queued after `queued` others that the host has not seen the end of."""

    def chunk(self, chunk: Chunk) -> ChunkDrafter:
        """Its part of prompts read in `chunk`."""


class OnDevice(Protocol):
    """A loaded drafter on a card."""

    @property
    def capabilities(self) -> Capabilities: ...

    def pass_room(self, context: int, kv: CachePair = F16) -> Sequence[Wanted]:
        """What its passes work in."""

    def own_room(self) -> Sequence[Wanted]:
        """What nobody else may have meanwhile: what waits to enter its cache, say."""

    def memory(self, context: int, room: Arena, own: Arena, kv: CachePair = F16) -> DraftMemory:
        """What a sequence of `context` positions takes: allocated, or on a device without memory only counted.
        `pass_room` lies in `room`, which the target's passes have too, `own_room` in `own`. `kv`: how layers that see
        the whole context keep it."""

    def drafter(
        self, memory: DraftMemory, embedding: Embedding, captured: CapturedLayers, state: DeviceState
    ) -> DeviceDrafter:
        """Its part of a new sequence on the target that has this embedding."""

    def projections(self) -> Sequence[AnyProjection]:
        """Every product of its part of a step; its logits are the target's head's."""

    def chunk_projections(self) -> Sequence[Projection]:
        """The matrices that a prompt's chunk multiplies by."""

    def chunk_rooms(self, rows: int) -> Sequence[Sequence[Wanted]]:
        """What a chunk of `rows` rows needs of the arena."""

    def chunk_lasting(self, rows: int) -> Sequence[Wanted]:
        """What it needs in addition to the arena, from layer to layer: `Chunk.lasting`."""
