"""The memory of a prompt chunk: its rows, a workspace for f16 weights, and an arena.

Branches of layers and the drafter use the arena one after the other: none needs what another one left there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dflash_core.attention_window import EVERYTHING, MAX_RUNS, AttentionWindow
from dflash_core.backends.cuda.launch import At, Device
from dflash_core.backends.cuda.products import WEIGHT_BYTES, Arena, Ops, Products, TensorSpec
from dflash_core.backends.cuda.projection import Projection
from dflash_core.backends.cuda.repack import GROUP, ROWS, blocks_of, groups_of

# Values that may exceed the range of f16 are multiplied by this before they are rounded.
HEADROOM = 1 / 16


class Chunk:
    """Up to `rows` rows of a prompt: h f32 and x f16 (rows, hidden), and `weights`, a workspace for one product.
    If a window hides positions, `runs` are those that full-attention layers see.

    `arena`: its size includes `ChunkNeeds.pieces`.
    """

    def __init__(self, device: Device, needs: ChunkNeeds, arena: Arena) -> None:
        on = device.torch_device
        self.rows, self.window, self.runs = needs.rows, EVERYTHING, list[slice]()
        self.counts = torch.zeros(2, dtype=torch.int32, device=on)
        self.tokens = torch.zeros(needs.rows, dtype=torch.int32, device=on)
        self.run_counts = torch.zeros(MAX_RUNS, 2, dtype=torch.int32, device=on)  # (positions of the run, 0)
        self.h, self.x, self.weights, shared, *self.lasting = arena.carve(*needs.pieces)
        self.arena = Arena(shared)
        self.ops = Ops(device)
        self.products = Products(device, self.weights, self.ops)

    @property
    def count(self) -> At:
        """The number of rows and the first position, as an argument of kernels."""
        return At(self.counts, 0)

    def begin(self, tokens: Sequence[int], first: int, window: AttentionWindow = EVERYTHING) -> None:
        """Set the rows of the next chunk, and what full-attention layers see."""
        end = first + len(tokens)
        self.window, self.runs = window, window.runs(first, end) if window.hides(end) else []
        if self.runs:
            sizes = [(run.stop - run.start, 0) for run in self.runs]
            self.run_counts[: len(sizes)] = torch.tensor(sizes, dtype=torch.int32)
        self.counts[:] = torch.tensor([len(tokens), first], dtype=torch.int32)
        self.tokens[: len(tokens)] = torch.tensor(tokens, dtype=torch.int32)


@dataclass(frozen=True, slots=True)
class ChunkNeeds:
    """The memory that a chunk of `rows` rows needs.

    `projections`: all projections that rows are multiplied by. `carved`: what is carved from the arena, one at a time.
    `lasting`: what a drafter keeps from layer to layer.
    """

    rows: int
    hidden: int
    projections: Sequence[Projection]
    carved: Sequence[Sequence[TensorSpec]]
    lasting: Sequence[TensorSpec] = ()

    @property
    def pieces(self) -> Sequence[TensorSpec]:
        """h, x, weights, the arena, and `lasting`."""
        arena = max(map(Arena.need, self.carved))
        return (
            ((self.rows, self.hidden), torch.float32),
            ((self.rows, self.hidden), torch.float16),
            ((_largest(self.projections),), torch.float16),
            ((arena,), torch.uint8),
            *self.lasting,
        )


def _largest(projections: Sequence[Projection]) -> int:
    """Elements of the largest matrix, but at most those of the workspace."""
    sizes = (blocks_of(m.rows) * ROWS * groups_of(m.columns) * GROUP for p in projections for m in p.matrices)
    return min(max(sizes), WEIGHT_BYTES // 2)
