"""A drafter that proposes inside a card's steps: what it shares with the others, and its interface to a sequence.

An `OnDevice` is a loaded drafter. A `DeviceDrafter` is its part of one sequence: the launches that it adds to the
step's graph, the memory that it owns, and the target layers that it captures. A drafter on the host has none of these;
see drafters/base.py of the core.

`DraftCaches` is what a drafter stores per position: a ring for each layer with a window, else all positions. During an
answer, rows of rings are copied before they are overwritten, so that drafts can be repeated from any of its positions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dflash_core.backends.base import Logits
from dflash_core.backends.cuda.activations import Activations
from dflash_core.backends.cuda.chunk import Chunk
from dflash_core.backends.cuda.device_state import DeviceState
from dflash_core.backends.cuda.kv import KVCache, Layer, Rings, Tensors, copied, part, put, ring_slots
from dflash_core.backends.cuda.launch import NO_INPUTS, Device, Inputs, Launch
from dflash_core.backends.cuda.layers.attention import AttentionBranch
from dflash_core.backends.cuda.layers.base import CapturedLayers, MixerMemory, PassBuffers
from dflash_core.backends.cuda.layers.embedding import Embedding
from dflash_core.backends.cuda.layers.head import Head
from dflash_core.backends.cuda.products import Arena, TensorSpec
from dflash_core.backends.cuda.projection import AnyProjection, Projection
from dflash_core.backends.cuda.state import MAX_NODES, PASS_ROWS, StopCode, width_for
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.backends.cuda.upload import Upload
from dflash_core.cache_types import F16, CachePair
from dflash_core.drafters import registry
from dflash_core.drafters.base import DraftModel
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.drafters.kinds import CARD
from dflash_core.errors import Code, ContextError
from dflash_core.knobs import Knobs
from dflash_core.snapshots.base import Rows
from dflash_core.tree import Candidates

# Slots of a ring beyond its window: for a block, for what steps in flight may commit, and for what may be pending.
SPARE = 512


def draft_slots(window: int, positions: int) -> int:
    """Slots of a layer whose rows see `window` positions (0: all), in a sequence of `positions` positions."""
    return ring_slots(window, SPARE, positions)


def cache_table(caches: Sequence[KVCache]) -> Tensor:
    """For each one-layer cache, the struct KeyValues of kernels/kv.cuh: two addresses and a count."""
    addresses = [(kv.k.data_ptr(), kv.v.data_ptr(), kv.slots) for kv in caches]
    return torch.tensor(addresses, dtype=torch.int64, device=caches[0].k.device)


class DraftCaches(Rings):
    """The caches of a drafter's layers. `ahead`: positions of a draft after the committed ones, its block."""

    def __init__(self, layers: Sequence[Layer], ahead: int, positions: int) -> None:
        super().__init__(layers, ahead, positions)
        self._layers = tuple(layers)
        self._copies: list[Rows] = []  # rows that steps of the current answer have overwritten
        self._copied = 0  # the position where those copies end

    def restore(self, saved: Tensors | None, length: int = 0, before: int = 0) -> None:
        super().restore(saved, length, before)
        self._copies.clear()
        if saved is None or saved:
            self._copied = length

    def begin_turn(self, length: int) -> None:
        """Called when an answer begins after `length` positions."""
        self._copies.clear()
        self._copied = self.seen(length)

    def before_steps(self, length: int, committed: int, pending: int) -> None:
        """Copy the rows that coming steps may overwrite. They commit up to `committed` positions after `length`; at
        most `pending` of the `length` positions are not in the caches yet."""
        if self._rings and length + committed + self.ahead > self._copied + self.slots:
            end = length - pending
            self._copies.append(copied(self._rings, self._copied, end))
            self._copied = end

    @contextmanager
    def cut_to(self, at: int, length: int) -> Iterator[None]:
        """Inside the context, a block can be drafted after the first `at` of `length` positions; on exit, the caches
        are as before.

        Raises ContextError if the rows that the block sees are lost.
        """
        if at >= length:
            yield
            return
        missing = self._missing(at, length) if self._rings else []
        # The block's own rows overwrite positions after `at`, so these are saved first.
        saved = [(self._layers, copied(self._layers, at, at + self.ahead))]
        saved += [(tuple(self._rings), copied(self._rings, rows.begin, rows.end)) for rows in missing]
        try:
            for rows in missing:
                put(self._rings, rows)
            yield
        finally:
            for layers, rows in saved:
                put(layers, rows)

    def _missing(self, at: int, length: int) -> list[Rows]:
        """Copies of rows that a block after `at` positions sees and that rings no longer hold."""
        begin, end = self.seen(at), min(self.oldest(length), at)
        found = [part(rows, max(begin, rows.begin), min(end, rows.end)) for rows in self._copies
                 if max(begin, rows.begin) < min(end, rows.end)]  # fmt: skip
        if sum(rows.end - rows.begin for rows in found) < end - begin:
            raise overwritten(at)
        return found


def overwritten(at: int) -> ContextError:
    """A draft after the first `at` positions needs rows that are no longer there."""
    return ContextError(
        f"the drafter no longer has its cache of the context before position {at:,}, which a draft from there "
        "needs; answer this turn again first",
        code=Code.TURN_NOT_IN_SESSION,
    )


PENDING_ROWS = MAX_NODES  # the most committed positions that may be pending: at least the longest path
UPDATE_WIDTHS = (16, 64)  # rows of the passes with which host-driven calls update the caches

# Binds the launches once per key and runs them.
Launcher = Callable[[tuple[object, ...], Callable[[], Iterable[Launch]]], None]
# Makes a drafter of its config and its weights; see `loaders` in drafters/kinds.py.
Loader = Callable[[Any, Upload, DeviceTarget, Activations], "OnDevice"]


@dataclass(frozen=True, slots=True)
class TargetSequence:
    """What a drafter uses of the target's part of a sequence. `captured`: the outputs of the layers that it names;
    `mixers`: the sequence's state by groups of layers; `places`: of each layer, its group and its place there."""

    embedding: Embedding
    captured: CapturedLayers
    state: DeviceState
    mixers: Sequence[MixerMemory]
    places: Sequence[tuple[int, int]]

    def keys(self, layer: int) -> tuple[KVCache, int]:
        """The cache of the keys and values of an attention layer, and the layer's place in it."""
        group, place = self.places[layer]
        branch = self.mixers[group].layer(place)
        assert isinstance(branch, AttentionBranch), "a layer without keys and values"
        return branch.kv, branch.place

    def reaches(self, length: int, before: int) -> bool:
        """Whether truncating a sequence of `before` positions to `length` restores all that a row there sees."""
        return all(memory.reaches(length, before) for memory in self.mixers)


class ChunkDrafter(ABC):
    """A drafter's part of a chunk of a prompt."""

    def capture(self, layer: int, n: int) -> None:
        """Called after the target's embedding and each layer, with `n` rows of the residual in the chunk. Nothing for
        drafters that read only the last layer's output, which stays there."""
        return

    @abstractmethod
    def update_cache(self, n: int) -> None:
        """Called when the chunk's `n` rows are committed: add them to the drafter's cache."""


class DeviceDrafter(ABC):
    """A drafter over one sequence, all of whose state is in `caches`. Committed positions are pending until they are
    there. `block`: positions of a draft, including the anchor: the most that a step commits. `nbytes`: of the
    sequence's state. `max_pending`: the most positions that may be pending."""

    block: int
    nbytes: int
    caches: DraftCaches
    captured: CapturedLayers
    state: DeviceState
    max_pending = PENDING_ROWS

    @abstractmethod
    def update_launches(self, rows: int, row0: int = 0) -> Iterator[Launch]:
        """Add the pending rows row0..row0 + rows to the caches."""

    @abstractmethod
    def passes(self, knobs: Knobs) -> int:
        """How many passes of its model a draft needs with these settings, one after the other."""

    @abstractmethod
    def propose_launches(self, head: Head, passes: int) -> list[Launch]:
        """The drafter's part of a step: add what the last step committed to the caches, and write ranked candidates
        where tree_build reads them."""

    @property
    def tree_inputs(self) -> Inputs:
        """More defines and arguments of tree_build after `propose_launches`."""
        return NO_INPUTS

    @abstractmethod
    def commit_launches(self, width: int) -> list[Launch]:
        """Make an accepted path of up to `width` nodes pending."""

    @abstractmethod
    def logits(self, root: int, window: int, at: int | None, head: Head, launch: Launcher) -> Logits:
        """Logits (depths, vocab) after the first `at` positions, or all of them. The state does not change."""

    def pairs(self, root: int, knobs: Knobs, at: int | None, head: Head, launch: Launcher) -> Candidates | None:
        """What a step proposes after the first `at` positions, each candidate scored given its parent; None if the
        drafter has no such scores. The state does not change."""
        return None

    @abstractmethod
    def chunk(self, chunk: Chunk) -> ChunkDrafter:
        """The drafter's part of prompts that are processed in `chunk`."""

    @property
    def length(self) -> int:
        """Committed positions."""
        return int(self.state.host["length"])

    @property
    def pending(self) -> int:
        """Committed positions that are not in the caches."""
        return int(self.state.host["length"] - self.state.host["draft_length"])

    def before_step(self, queued: int) -> None:
        """Called before a step is queued behind `queued` others whose results the host has not read yet."""
        self.caches.before_steps(self.length, self.block * (queued + 1), self.max_pending)

    def drain_launches(self) -> list[Launch]:
        """Add everything that may be pending to the caches, after the steps that are queued."""
        rows0 = range(0, PENDING_ROWS, PASS_ROWS)
        updates = [launch for row0 in rows0 for launch in self.update_launches(PASS_ROWS, row0)]
        return [*updates, Launch("features.cu", "features_taken", {}, 1, 1, [self.state.pointer])]

    def update_cache(self, launch: Launcher) -> None:
        """Add all committed positions to the caches."""
        self.state.push()
        pending = self.pending
        for row0 in range(0, pending, PASS_ROWS):
            rows = width_for(min(PASS_ROWS, pending - row0), UPDATE_WIDTHS)
            launch(("update", rows, row0), partial(self.update_launches, rows, row0))
        self.state.host["draft_length"] = self.state.host["length"]

    @contextmanager
    def standing(self, at: int | None, launch: Launcher, **fields: float) -> Iterator[None]:
        """Inside the context, the state is that of a draft after the first `at` positions (None: all) with `fields`."""
        self.update_cache(launch)
        state, length = self.state.host, self.length
        begin = length if at is None else at
        with self.caches.cut_to(begin, length):
            for name, value in fields.items():
                state[name] = value
            state["stop"] = StopCode.RUNNING
            state["length"] = state["draft_length"] = begin
            try:
                self.state.push()
                yield
            finally:
                state["length"] = state["draft_length"] = length


class OnDevice(ABC):
    """A loaded drafter on a card: its weights, and the memory that they need in a sequence. `width`: of its residual
    stream."""

    device: Device
    capabilities: Capabilities
    width: int

    @abstractmethod
    def projections(self) -> tuple[Sequence[AnyProjection], Sequence[AnyProjection]]:
        """The projections that read rows as wide as the residual stream, and those that write such rows; without the
        head, which is the target's."""

    @abstractmethod
    def scratch(self, context: int, kv: CachePair) -> Sequence[Sequence[TensorSpec]]:
        """What parts of its layers need while they run, one after the other."""

    def pass_buffers(self, context: int, kv: CachePair = F16) -> Sequence[TensorSpec]:
        """Scratch memory of its passes."""
        return [*PassBuffers.partials(*self.projections()), *max(self.scratch(context, kv), key=Arena.need)]

    def own_buffers(self) -> Sequence[TensorSpec]:
        """Memory that others must not use between passes, such as rows that are pending."""
        return PassBuffers.lasting(self.width, *self.projections())

    @abstractmethod
    def drafter(
        self, sequence: TargetSequence, context: int, arena: Arena, own: Arena, kv: CachePair = F16
    ) -> DeviceDrafter:
        """Its part of a new sequence of `context` positions, with its memory.

        `arena`: holds `pass_buffers`; the target's passes use it too. `own`: holds `own_buffers`. `kv`: the types of
        the target's keys and values; a drafter's own have no recent window.
        """

    def chunk_projections(self) -> Sequence[Projection]:
        """The matrices that a chunk of a prompt is multiplied by."""
        return ()

    def chunk_buffers(self, rows: int) -> Sequence[Sequence[TensorSpec]]:
        """Memory that a chunk of `rows` rows needs in the arena."""
        return ()

    def chunk_lasting(self, rows: int) -> Sequence[TensorSpec]:
        """Memory that a chunk needs outside the arena, because it lasts from layer to layer: `Chunk.lasting`."""
        return ()


def on_device(config: DraftModel, upload: Upload, target: DeviceTarget, activations: Activations) -> OnDevice:
    """A drafter of `target` with the weights of `upload`, by its kind's row in the table of drafters. Raises
    UnsupportedError."""
    load: Loader = registry.loader(config.kind, CARD)
    return load(config, upload, target, activations)
