"""What all kinds of layers share on a card: the protocols that they fulfil, and the scratch memory of passes.

A layer is two branches, h += mixer(norm h) and h += ffn(norm h). A branch begins with the activations that a norm has
made and ends with split-K partials that the next norm adds to the residual stream; in a prompt's chunk it begins with
normed rows and adds to the rows' residual itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from dflash_core.attention_window import EVERYTHING, AttentionWindow
from dflash_core.backends.cuda.acts import F16_GROUP, Q8_GROUP
from dflash_core.backends.cuda.device_state import DeviceState
from dflash_core.backends.cuda.launch import At, HasAddress, Launch
from dflash_core.backends.cuda.projection import Acts, AnyProjection, Matrix
from dflash_core.backends.cuda.repack import groups_of
from dflash_core.backends.cuda.state import PASS_ROWS
from dflash_core.cache_types import F16, CachePair

if TYPE_CHECKING:
    from dflash_core.backends.cuda.chunk import Chunk
    from dflash_core.backends.cuda.products import Arena, Wanted

# Called with the rows of a chunk and the positions before them.
ChunkRun = Callable[[int, int], None]
# What a checkpoint keeps of one kind's layers, in the host's memory.
Kept = tuple[Tensor, ...]


class Upload(Protocol):
    """Tensors of a weight file, brought to the device."""

    def matrix(self, name: str) -> Matrix:
        """As super-tiles. Raises UnsupportedError for a type without a kernel."""

    def vector(self, name: str) -> Tensor:
        """As f32, in torch order."""

    def raw(self, name: str) -> tuple[str, Tensor]:
        """Type and blocks as in the file, (rows, bytes per row)."""

    def on_host(self, name: str) -> tuple[str, HasAddress]:
        """The same in host memory that kernels reach."""


class PassBuffers:
    """Scratch of passes of up to PASS_ROWS rows; nothing in it means anything from one pass to the next.

    h: the residual stream (rows, hidden). acts: activations of whatever is multiplied next. wide, narrow: split-K
    partials of `inputs`, which read the residual stream, and of `outputs`, which are added to it. inside: what a branch
    works in while the pass is at it.
    `own`: zeros of its own, where `lasting` has been counted. `room`: where `partials` have been, and what branches
    work in.
    """

    def __init__(
        self, hidden: int, inputs: Sequence[AnyProjection], outputs: Sequence[AnyProjection], own: Arena, room: Arena
    ) -> None:
        self.h, *acts = own.carve(*self.lasting(hidden, inputs, outputs))
        self.acts = Acts(*acts)
        partials = self.partials(inputs, outputs)
        self.wide, self.narrow = room.carve(*partials)
        self.inside = room.after(*partials)

    @staticmethod
    def lasting(hidden: int, inputs: Sequence[AnyProjection], outputs: Sequence[AnyProjection]) -> Sequence[Wanted]:
        """The residual stream, and activations: zeros at first, so that padding rows are numbers."""
        return [((PASS_ROWS, hidden), torch.float32), *acts_pieces(max(p.columns for p in (*inputs, *outputs)))]

    @staticmethod
    def partials(inputs: Sequence[AnyProjection], outputs: Sequence[AnyProjection]) -> Sequence[Wanted]:
        """Room for the output of the largest of `inputs`, and of `outputs`."""
        sizes = [max(p.split_k * p.width for p in projections) * PASS_ROWS for projections in (inputs, outputs)]
        return [((size,), torch.float32) for size in sizes]


def acts_pieces(columns: int) -> Sequence[Wanted]:
    """Activations of PASS_ROWS rows of up to `columns` k, in both forms."""
    return [((groups_of(columns) * size,), torch.uint8) for size in (Q8_GROUP, F16_GROUP)]


def acts_for(columns: int, device: torch.device) -> Acts:
    """Activations of PASS_ROWS rows of up to `columns` k; zeros, so that padding rows are numbers."""
    return Acts(*(torch.zeros(size, dtype=dtype, device=device) for size, dtype in acts_pieces(columns)))


@dataclass(frozen=True, slots=True)
class Pass:
    """The rows of one pass: nodes node0.. of the tree in `state`, `count` of which are live. `window`: two int32,
    the last and the first positions that layers of full attention see; None: they see all."""

    state: DeviceState
    buffers: PassBuffers
    rows: int
    node0: int
    count: At
    window: Tensor | None = None


class Branch(Protocol):
    """One half of a layer, bound to what it works on."""

    @property
    def inputs(self) -> AnyProjection:
        """What reads the norm's activations."""

    @property
    def out(self) -> AnyProjection:
        """What is added to the residual stream."""

    def launches(self, scope: Pass) -> Iterator[Launch]:
        """From the activations of `inputs` to the partials of `out`, in buffers.narrow."""

    def chunk(self, chunk: Chunk) -> ChunkRun:
        """What runs it over a chunk's rows, from chunk.x into chunk.h. Keeps nothing alive that may be replaced when
        trees grow."""


class MixerMemory(Protocol):
    """What a sequence holds for all layers with one mixer spec. `component`: what its bytes count as."""

    component: str
    detail: str

    @property
    def nbytes(self) -> int:
        """The sequence's own."""

    def layer(self, place: int) -> Branch:
        """The mixer of the `place`-th of these layers."""

    @property
    def handed(self) -> Kept:
        """What a pass hands from one of these layers to the next."""

    def commit(self, state: DeviceState, stamps: Tensor) -> list[Launch]:
        """Move what was accepted to where a sequence has it."""

    def flush(self, state: DeviceState) -> list[Launch]:
        """Bring up to date what otherwise the next pass commits."""

    @property
    def tensors(self) -> Kept:
        """What cannot be rewound, as it is held: of all layers, which are the first dimension."""

    def restore(self, kept: Kept | None) -> None:
        """Return to a copy of `tensors`, or to the empty state."""

    def positions(self, begin: int, end: int) -> Kept:
        """What is kept of the positions begin..end, as it is held: of all layers, which are the first dimension."""

    def keep(self) -> None:
        """Note what a prompt's chunk changes; no pass comes in between `keep` and `undo`."""

    def undo(self) -> None:
        """Return to what was kept."""

    def grown(self, capacity: int) -> MixerMemory:
        """The same with memory for trees of `capacity` nodes. What is committed stays, rows of the last pass do not."""


class MixerLayers(Protocol):
    """All layers of a target with one mixer spec: weights, in the order of the layers."""

    chunked: bool
    """Whether the card can read prompts in chunks through them."""

    def load(self, upload: Upload, prefix: str) -> None:
        """The next layer's weights."""

    def projections(self, place: int) -> tuple[AnyProjection, AnyProjection]:
        """`inputs` and `out` of a layer."""

    def pass_room(self, context: int, kv: CachePair = F16) -> Sequence[Wanted]:
        """What a pass works in while it is at one of the layers."""

    def rows_room(self, capacity: int) -> Sequence[Wanted]:
        """What a pass over a tree of up to `capacity` nodes leaves for its commit. Nothing waits for that where a
        prompt's chunk begins."""

    def memory(self, context: int, capacity: int, room: Arena, rows: Arena, kv: CachePair = F16) -> MixerMemory:
        """Of a sequence of up to `context` positions and trees of up to `capacity` nodes; `pass_room` lies in `room`,
        which others have when the pass has gone on, and `rows_room` in `rows`, which chunks have too. `kv`: how keys
        and values are kept."""

    def chunk_rooms(self, rows: int, context: int, kv: CachePair = F16) -> Sequence[Sequence[Wanted]]:
        """What the layers carve out of the arena of a chunk of `rows` rows, one layer after the other, in a sequence of
        up to `context` positions."""

    def chunk_results(
        self, rows: int, end: int, kv: CachePair = F16, window: AttentionWindow = EVERYTHING
    ) -> Sequence[int]:
        """Bytes of each piece that torch allocates while a chunk of `rows` rows up to the position `end` is at a layer,
        at most. `window`: what layers of full attention see."""

    def check(self) -> None:
        """Raises UnsupportedError where the card has too little shared memory for the widest pass."""


class FeedForwardLayer(Branch, Protocol):
    """A feed-forward branch needs no memory of a sequence: weights and launches in one."""

    @property
    def pass_room(self) -> Sequence[Wanted]:
        """What a pass works in while it is at the layer, from the norm before it on: carved from buffers.inside."""

    @property
    def chunked(self) -> bool:
        """Whether the card can read prompts in chunks through it."""

    def idle_bytes(self, rows: int) -> float:
        """Of its weights, what a pass of so many rows leaves out, where rows take experts at random."""

    def normed(self, buffers: PassBuffers) -> Tensor | None:
        """Where the norm before it leaves f32 rows as well, or None."""

    def chunk_rooms(self, rows: int) -> Sequence[Sequence[Wanted]]: ...

    def chunk_normed(self, chunk: Chunk) -> Tensor | None:
        """Where the norm before it leaves a chunk's rows as f32 as well, or None."""
