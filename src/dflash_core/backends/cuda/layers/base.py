"""What all kinds of layers share on a card: their interfaces, and the scratch memory of passes.

A layer is two branches, h += mixer(norm h) and h += ffn(norm h). In a pass, a branch reads the activations that a norm
has written, and ends with split-K partials, which the next norm adds to the residual stream. In a chunk of a prompt, a
branch reads normed rows and adds to the residual stream itself, or where a norm comes between them to rows of zeros.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dflash_core.backends.cuda.activations import F16_GROUP, Q8_GROUP
from dflash_core.backends.cuda.device_state import DeviceState
from dflash_core.backends.cuda.kv import SequenceState
from dflash_core.backends.cuda.launch import At, Launch
from dflash_core.backends.cuda.projection import Acts, AnyProjection
from dflash_core.backends.cuda.repack import groups_of
from dflash_core.backends.cuda.state import PASS_ROWS
from dflash_core.backends.cuda.upload import Upload
from dflash_core.cache_types import F16, CachePair

if TYPE_CHECKING:
    from dflash_core.backends.cuda.chunk import Chunk
    from dflash_core.backends.cuda.products import Arena, TensorSpec

# Called with the rows of a chunk and the positions before them.
ChunkRun = Callable[[int, int], None]


class PassBuffers:
    """Scratch memory of passes of up to PASS_ROWS rows; the contents do not last from one pass to the next.

    h: the residual stream (rows, hidden). acts: activations of the next matrix product. wide, narrow: split-K
    partials of `inputs`, which read the residual stream, and of `outputs`, which are added to it. inside: scratch
    memory of the branch that runs. `side_by_side`: partials of two branches are needed at once: those of the second are
    in `aside.narrow`.
    `own`: an arena of zeros only for `lasting`. `shared`: an arena for `partials` and the branches' scratch.
    """

    def __init__(
        self,
        hidden: int,
        inputs: Sequence[AnyProjection],
        outputs: Sequence[AnyProjection],
        own: Arena,
        shared: Arena,
        *,
        side_by_side: bool = False,
    ) -> None:
        self.h, *acts = own.carve(*self.lasting(hidden, inputs, outputs))
        self.acts = Acts(*acts)
        partials = self.partials(inputs, outputs, side_by_side=side_by_side)
        self.wide, self.narrow, *self._second = shared.carve(*partials)
        self.inside = shared.after(*partials)

    @property
    def aside(self) -> PassBuffers:
        """The same memory, but for the partials of `outputs`."""
        other = copy.copy(self)
        (other.narrow,) = self._second
        return other

    @staticmethod
    def lasting(hidden: int, inputs: Sequence[AnyProjection], outputs: Sequence[AnyProjection]) -> Sequence[TensorSpec]:
        """The residual stream, and activations: zeros at first, so that padding rows hold finite numbers. In f16 those
        as wide as the residual stream, for a head that may read them, and wider ones where a projection does."""
        projections = (*inputs, *outputs)
        halves = max([hidden, *(p.columns for p in projections if p.plan.needs_f16)])
        return [((PASS_ROWS, hidden), torch.float32), *acts_pieces(max(p.columns for p in projections), halves)]

    @staticmethod
    def partials(
        inputs: Sequence[AnyProjection], outputs: Sequence[AnyProjection], *, side_by_side: bool = False
    ) -> Sequence[TensorSpec]:
        """Memory for the output of the largest of `inputs`, and of `outputs`, twice if `side_by_side`."""
        sizes = [max(p.split_k * p.width for p in projections) * PASS_ROWS for projections in (inputs, outputs)]
        return [((size,), torch.float32) for size in (*sizes, *sizes[1:] * side_by_side)]


class CapturedLayers:
    """The residual stream after each of `layers`, concatenated: `rows` f32 (nodes of a tree, layers * hidden).

    They are f32, although DFlash keeps accepted rows as f16, because an MTP head and `features` need f32. Another
    variant of the norm with f16 rows would save only 1.2 MB for 24 nodes of the 27B model.
    """

    def __init__(self, layers: Sequence[int], hidden: int, capacity: int, own: Arena) -> None:
        """`own`: an arena of zeros whose size includes `pieces`."""
        self.layers, self._hidden = tuple(layers), hidden
        (self.rows,) = own.carve(*self.pieces(layers, hidden, capacity))

    @staticmethod
    def pieces(layers: Sequence[int], hidden: int, capacity: int) -> Sequence[TensorSpec]:
        """The memory of rows for trees of `capacity` nodes."""
        return [((capacity, len(layers) * hidden), torch.float32)]

    @property
    def width(self) -> int:
        return len(self.layers) * self._hidden

    def at(self, layer: int) -> At | None:
        """The place of a layer's output in the first row; None for a layer that is not captured."""
        return At(self.rows, self.layers.index(layer) * self._hidden) if layer in self.layers else None


def acts_pieces(columns: int, halves: int) -> Sequence[TensorSpec]:
    """Memory for activations of PASS_ROWS rows: of up to `columns` columns in int8, and up to `halves` in f16."""
    return [((groups_of(columns) * Q8_GROUP,), torch.uint8), ((groups_of(halves) * F16_GROUP,), torch.uint8)]


@dataclass(frozen=True, slots=True)
class Pass:
    """The rows of one pass: nodes of the tree in `state`, from node0 on; `count` of them are live. `eps`: of norms.

    `window`: two int32, how many of the last and of the first positions full-attention layers see; None: all. `given`:
    per-layer inputs, of a model that has them.
    """

    state: DeviceState
    buffers: PassBuffers
    rows: int
    node0: int
    count: At
    eps: float
    window: Tensor | None = None
    given: Tensor | None = None

    @property
    def single_row(self) -> bool:
        """A root without a tree: plain decoding."""
        return self.rows == 1 and self.node0 == 0


class Branch(ABC):
    """One half of a layer, bound to the memory that it works on.

    inputs: the projection that reads the norm's activations. out: the projection whose result is added to the residual
    stream. out_bias: the bias of `out`, (hidden,), if it has one; in a chunk the branch adds it itself. normed_by: the
    weight of `normed` rows, if it is not that of the norm before the branch.
    """

    inputs: AnyProjection
    out: AnyProjection
    out_bias: Tensor | None = None
    normed_by: Tensor | None = None

    @abstractmethod
    def launches(self, scope: Pass) -> Iterator[Launch]:
        """Of a pass: from the activations of `inputs` to the partials of `out`, in buffers.narrow."""

    @abstractmethod
    def chunk(self, chunk: Chunk) -> ChunkRun:
        """A function that runs the branch over a chunk's rows, from chunk.x, and adds the result to chunk.out."""

    def normed(self, buffers: PassBuffers) -> Tensor | None:
        """Where the norm before the branch writes f32 rows too, or None."""
        return None

    def chunk_normed(self, chunk: Chunk) -> Tensor | None:
        """The same of a chunk's rows."""
        return None


class FeedForward(Branch):
    """A feed-forward branch: weights and launches in one, since it needs no memory of a sequence."""

    @property
    def pass_buffers(self) -> Sequence[TensorSpec]:
        """Scratch memory that a pass needs from the norm before the layer to its end: carved from buffers.inside."""
        return ()

    @abstractmethod
    def chunk_buffers(self, rows: int) -> Sequence[Sequence[TensorSpec]]: ...


class MixerMemory(SequenceState, ABC):
    """A sequence's memory for all layers with one mixer spec. `component`: its name in the memory report; `nbytes`:
    bytes that belong to this sequence."""

    component: str
    detail: str = ""
    nbytes: int

    @abstractmethod
    def layer(self, place: int) -> Branch:
        """The mixer of the `place`-th of these layers."""

    def commit(self, state: DeviceState, stamps: Tensor) -> list[Launch]:
        """Move the rows of accepted nodes to the sequence's committed positions, if the next pass does not."""
        return []

    def flush(self, state: DeviceState) -> list[Launch]:
        """Commit now what otherwise the next pass commits."""
        return []

    def save(self) -> None:
        """Save what a chunk of a prompt will change; no pass may run between `save` and `undo`."""
        return

    def undo(self, end: int) -> None:
        """Restore what `save` saved; the chunk would have ended at position `end`."""
        return


@dataclass(frozen=True, slots=True)
class SequenceNeeds:
    """What the memory of a sequence is made for: up to `context` positions and trees of up to `capacity` nodes.

    `arena`: holds `pass_buffers`; the next layers of a pass reuse it. `rows`: holds `row_buffers`; chunks use it too.
    `kv`: the types of cached keys and values. `lender`: the layer whose keys and values are read by layers that have
    none. `chunk_rows`: the most rows of a prompt's chunk.
    """

    context: int
    capacity: int
    arena: Arena
    rows: Arena
    kv: CachePair = F16
    lender: Branch | None = None
    chunk_rows: int = 0


class MixerLayers(ABC):
    """All layers of a target with one mixer spec: their weights, in the order of the layers. `chunked`: whether the
    card can process prompts in chunks through these layers."""

    chunked = True

    @abstractmethod
    def load(self, upload: Upload, prefix: str) -> None:
        """Load the next layer's weights."""

    @abstractmethod
    def projections(self, place: int) -> tuple[AnyProjection, AnyProjection]:
        """`inputs` and `out` of a layer."""

    @abstractmethod
    def pass_buffers(self, context: int, kv: CachePair = F16) -> Sequence[TensorSpec]:
        """Scratch memory that a pass needs while it runs one of the layers."""

    def row_buffers(self, capacity: int) -> Sequence[TensorSpec]:
        """Memory for what a pass over a tree of up to `capacity` nodes leaves for its commit. When a chunk of a
        prompt begins, no commit is pending."""
        return ()

    @abstractmethod
    def memory(self, needs: SequenceNeeds) -> MixerMemory:
        """Memory of a sequence."""

    @abstractmethod
    def chunk_buffers(self, rows: int, context: int, kv: CachePair = F16) -> Sequence[Sequence[TensorSpec]]:
        """What each layer carves from the arena of a chunk of `rows` rows, in a sequence of up to `context` positions.
        The layers reuse the same bytes, one after the other."""

    def chunk_results(self, rows: int, context: int, kv: CachePair = F16) -> int:
        """The most bytes that torch allocates while a layer runs a chunk of up to `rows` rows in a sequence of up to
        `context` positions, whatever an attention window hides."""
        return 0

    def check(self) -> None:
        """Raises UnsupportedError if the card has too little shared memory for the widest pass."""
        return
