"""The memory of a prompt chunk: its rows, a workspace for f16 weights, and an arena.

Branches of layers and the drafter use the arena one after the other: none needs what another one left there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from dflash_core.attention_window import EVERYTHING, AttentionWindow
from dflash_core.backends.cuda.kv import slot_runs
from dflash_core.backends.cuda.launch import At, Device
from dflash_core.backends.cuda.products import WEIGHT_BYTES, Arena, Ops, Products, TensorSpec
from dflash_core.backends.cuda.projection import Projection
from dflash_core.backends.cuda.repack import GROUP, ROWS, blocks_of, groups_of
from dflash_core.cache_types import F16, CachePair

MAX_FILLS = 256  # of a View: runs of what it shows, and of a ring that wraps

# Values that may exceed the range of f16 are multiplied by this before they are rounded.
HEADROOM = 1 / 16


@dataclass(frozen=True, slots=True)
class Fill:
    """`slots` of a cache that are copied to a chunk's keys from `to` on. `place`: of the numbers for the kernel that
    copies, in `View.counts`."""

    slots: slice
    to: int
    place: int


@dataclass(frozen=True, slots=True)
class Stage:
    """Rows of a chunk that read the same form of each key: the first `keys` ones. Those in `packed` are read as halves
    by the stage before."""

    rows: slice
    keys: int
    packed: slice


NO_KEYS = slice(0, 0)


class View:
    """What the layers of one kind see of a chunk: the positions `shown`, all up to its end, or if the `window` hides
    some of them (`masked`), those that some row sees. `slots`: of a ring; 0 where all positions have their own.

    `fills` copy what is not read in its place. With a recent window of `kv`, `slots` are those of its halves: `fills`
    copy what the last stage reads packed, `newest` the halves that the first one reads, over those of them in `border`.
    Other chunks have one stage.
    """

    def __init__(self, device: torch.device, window: AttentionWindow, slots: int, kv: CachePair = F16) -> None:
        self.window, self.slots, self.kv = window, slots, kv
        self.shown, self.masked, self.stages = list[slice](), False, list[Stage]()
        self.fills, self.newest, self.border = list[Fill](), list[Fill](), NO_KEYS
        self.counts = torch.zeros(MAX_FILLS, 4, dtype=torch.int32, device=device)

    def begin(self, window: AttentionWindow, first: int, end: int) -> None:
        """Of the positions from `first` to `end`."""
        self.window, self.masked = window, window.hides(end)
        self.shown = window.runs(first, end) if self.masked else [slice(0, end)]
        groups, seen = self.kv.groups(first, end), self._keys(end)
        borders = [self._keys(self.kv.border(group.start)) for group in groups] if self.kv.recent else [0]
        self.stages = [
            Stage(slice(group.start - first, group.stop - first), group.stop - end + seen, slice(before, border))
            for group, before, border in zip(groups, borders[:1] + borders, borders)
        ]
        self.border, self.fills, self.newest = slice(borders[0], borders[-1]), [], []
        if self.kv.recent:
            self.fills = list(self._fills(0, self.kv.border(groups[-1].start), 0, 0))
            self.newest = list(self._fills(self.kv.border(first), end, self.slots, len(self.fills)))
        else:
            self.fills = list(self._fills(0, end, self.slots, 0))
        fills = self.fills + self.newest
        counts = [(fill.slots.stop - fill.slots.start, 0, fill.slots.start, fill.to) for fill in fills]
        self.counts[: len(counts)] = torch.tensor(counts, dtype=torch.int32)

    def _keys(self, end: int) -> int:
        """How many positions before `end` are shown."""
        return sum(max(min(run.stop, end) - run.start, 0) for run in self.shown)

    def _fills(self, begin: int, end: int, ring: int, place: int) -> Iterator[Fill]:
        """Of what is shown of the positions begin..end, out of a ring of so many slots (0: none)."""
        for run in self.shown:
            low, high = max(run.start, begin), min(run.stop, end)
            for at, slots in slot_runs(low, high, ring or max(high, 1)):
                yield Fill(slice(slots.start, slots.stop), self._keys(low) + at, place)
                place += 1


class Chunk:
    """Up to `rows` rows of a prompt: h f32 and x f16 (rows, hidden), and `weights`, a workspace for one product.
    `out`: what branches add to: h, or where something comes between them, rows of their own, which begin as zeros.
    `side`: more such rows, for the sum of branches side by side. `embedded`: what the first layer reads, like x but
    times HEADROOM, if a layer needs it.

    `arena`: its size includes `ChunkNeeds.pieces`.
    """

    def __init__(self, device: Device, needs: ChunkNeeds, arena: Arena) -> None:
        on = device.torch_device
        self.rows, self._device = needs.rows, on
        self.views: dict[tuple[int, int, CachePair], View] = {}
        self.counts = torch.zeros(4, dtype=torch.int32, device=on)
        self.tokens = torch.zeros(needs.rows, dtype=torch.int32, device=on)
        self.h, self.x, self.weights, shared, *rest = arena.carve(*needs.pieces)
        self.embedded = rest.pop(0) if needs.embedded else self.x
        own, self.lasting = rest[: needs.own_rows], rest[needs.own_rows :]
        self.out, self.side = (*own, self.h, self.h)[:2]
        self.arena = Arena(shared)
        self.ops = Ops(device)
        self.products = Products(device, self.weights, self.ops)

    @property
    def count(self) -> At:
        """The number of rows, the first position and two zeros, as an argument of kernels."""
        return At(self.counts, 0)

    def view(self, size: int, slots: int = 0, kv: CachePair = F16) -> View:
        """What layers with a window of `size` positions see of a chunk, 0 for full attention; `begin` keeps it up to
        date. `slots`, `kv`: of View."""
        key = size, slots, kv
        if key not in self.views:
            self.views[key] = View(self._device, AttentionWindow(size), slots, kv)
        return self.views[key]

    def begin(self, tokens: Sequence[int], first: int, window: AttentionWindow = EVERYTHING) -> None:
        """Set the rows of the next chunk, and what full-attention layers see."""
        end = first + len(tokens)
        for (size, *_), view in self.views.items():
            view.begin(window if size == 0 else view.window, first, end)
        for rows in (self.out, self.side):
            if rows is not self.h:
                rows.zero_()
        self.counts[:2] = torch.tensor([len(tokens), first], dtype=torch.int32)
        self.tokens[: len(tokens)] = torch.tensor(tokens, dtype=torch.int32)


@dataclass(frozen=True, slots=True)
class ChunkNeeds:
    """The memory that a chunk of `rows` rows needs.

    `projections`: all projections that rows are multiplied by. `carved`: what is carved from the arena, one at a time.
    `lasting`: what a drafter keeps from layer to layer. `embedded`, `own_rows`: whether there is `Chunk.embedded`, and
    how many of `Chunk.out` and `Chunk.side` are not the residual stream.
    """

    rows: int
    hidden: int
    projections: Sequence[Projection]
    carved: Sequence[Sequence[TensorSpec]]
    lasting: Sequence[TensorSpec] = ()
    own_rows: int = 0
    embedded: bool = False

    @property
    def pieces(self) -> Sequence[TensorSpec]:
        """h, x, weights, the arena, with `embedded` rows like x, `own_rows` times rows like h, and `lasting`."""
        arena = max(map(Arena.need, self.carved))
        rows = ((self.rows, self.hidden), torch.float32)
        halves = ((self.rows, self.hidden), torch.float16)
        return (
            rows,
            halves,
            ((_largest(self.projections),), torch.float16),
            ((arena,), torch.uint8),
            *([halves] if self.embedded else []),
            *[rows] * self.own_rows,
            *self.lasting,
        )


def _largest(projections: Sequence[Projection]) -> int:
    """Elements of the largest matrix, but at most those of the workspace."""
    sizes = (blocks_of(m.rows) * ROWS * groups_of(m.columns) * GROUP for p in projections for m in p.matrices)
    return min(max(sizes), WEIGHT_BYTES // 2)
