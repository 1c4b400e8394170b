"""What prompts are read in, a chunk of rows at a time: rows, a workspace for weights as f16, and an arena.

Branches of layers and the drafter take turns in the arena: none needs what another one left there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dflash_core.attention_window import EVERYTHING, MOST_RUNS, AttentionWindow
from dflash_core.backends.cuda.launch import At, Device
from dflash_core.backends.cuda.products import WEIGHT_BYTES, Arena, Ops, Products, Wanted
from dflash_core.backends.cuda.projection import Projection
from dflash_core.backends.cuda.repack import GROUP, ROWS, blocks_of, groups_of

# What may exceed the range of halves is multiplied by this before it is rounded.
HEADROOM = 1 / 16


class Chunk:
    """Up to `rows` rows of a prompt: h f32 and x f16 (rows, hidden), `weights` a workspace for one product's weights.
    Where a window hides something, `runs` are the positions that layers of full attention see.

    `room`: where `ChunkNeeds.pieces` of the same rows have been counted.
    """

    def __init__(self, device: Device, needs: ChunkNeeds, room: Arena) -> None:
        on = device.torch_device
        self.rows, self.window, self.runs = needs.rows, EVERYTHING, list[slice]()
        self.counts = torch.zeros(2, dtype=torch.int32, device=on)
        self.tokens = torch.zeros(needs.rows, dtype=torch.int32, device=on)
        self.run_counts = torch.zeros(MOST_RUNS, 2, dtype=torch.int32, device=on)  # positions of each run, and 0
        self.h, self.x, self.weights, arena, *self.lasting = room.carve(*needs.pieces)
        self.arena = Arena(arena)
        self.ops = Ops(device)
        self.products = Products(device, self.weights, self.ops)

    @property
    def count(self) -> At:
        """Rows of the chunk and its first position, as kernels read them."""
        return At(self.counts, 0)

    def begin(self, tokens: Sequence[int], first: int, window: AttentionWindow = EVERYTHING) -> None:
        """Note the rows to come, and what layers of full attention see."""
        end = first + len(tokens)
        self.window, self.runs = window, window.runs(first, end) if window.hides(end) else []
        if self.runs:
            sizes = [(run.stop - run.start, 0) for run in self.runs]
            self.run_counts[: len(sizes)] = torch.tensor(sizes, dtype=torch.int32)
        self.counts[:] = torch.tensor([len(tokens), first], dtype=torch.int32)
        self.tokens[: len(tokens)] = torch.tensor(tokens, dtype=torch.int32)


@dataclass(frozen=True, slots=True)
class ChunkNeeds:
    """What a chunk of `rows` rows works in.

    `projections`: all that rows are multiplied by. `rooms`: what is carved out of the arena, one of them at a time.
    `lasting`: what a drafter keeps from layer to layer.
    """

    rows: int
    hidden: int
    projections: Sequence[Projection]
    rooms: Sequence[Sequence[Wanted]]
    lasting: Sequence[Wanted] = ()

    @property
    def pieces(self) -> Sequence[Wanted]:
        """h, x, weights, the arena, and what lasts."""
        arena = max(map(Arena.need, self.rooms))
        return (
            ((self.rows, self.hidden), torch.float32),
            ((self.rows, self.hidden), torch.float16),
            ((_largest(self.projections),), torch.float16),
            ((arena,), torch.uint8),
            *self.lasting,
        )


def _largest(projections: Sequence[Projection]) -> int:
    """Elements of the largest matrix, or what a part of one may take."""
    sizes = (blocks_of(m.rows) * ROWS * groups_of(m.columns) * GROUP for p in projections for m in p.matrices)
    return min(max(sizes), WEIGHT_BYTES // 2)
