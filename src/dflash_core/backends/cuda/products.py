"""Products of many rows with the library: a matrix, or a part of it, is converted to f16 and then multiplied."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dflash_core.backends.cuda.launch import WARP, At, Device, Launch, Run
from dflash_core.backends.cuda.projection import Matrix
from dflash_core.backends.cuda.repack import GROUP, ROWS, blocks_of, groups_of, tile_type
from dflash_core.backends.cuda.upload import aligned

# The most bytes of a part of a matrix as f16: a gate of 6,144 x 5,120, a third of an FFN matrix of 17,408 x 5,120.
WEIGHT_BYTES = 60 << 20
MAX_WARPS = 8  # the most tiles that a block of `dequant` converts, one per warp


class Op:
    """A launch with fixed arguments; it is bound by `bind` or when it first runs."""

    def __init__(self, device: Device, launch: Launch) -> None:
        self.launch, self._device = launch, device
        self._run: Run | None = None

    def bind(self) -> Run:
        """The bound launch, as a function."""
        if self._run is None:
            self._run = self._device.bind([self.launch])
        return self._run

    def __call__(self) -> None:
        self.bind()()


class Ops:
    """A list of launches, so that they can be compiled and bound together."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.added: list[Op] = []

    def add(self, launch: Launch) -> Op:
        self.added.append(Op(self.device, launch))
        return self.added[-1]


@dataclass(frozen=True, slots=True)
class Part:
    """The columns of a product from `begin` on: launches that write their weights, and these weights as f16 (rows,
    columns)."""

    begin: int
    ops: tuple[Op, ...]
    weights: Tensor


class Products:
    """Multiplies rows by matrices that are stored as super-tiles, with one workspace of WEIGHT_BYTES."""

    def __init__(self, device: Device, workspace: Tensor, ops: Ops) -> None:
        self._device, self._workspace, self._ops = device, workspace, ops

    def parts(self, matrix: Matrix, columns: range | None = None, rows: range | None = None) -> tuple[Part, ...]:
        """Rows (from a multiple of 16 on) and columns of a matrix, in as few parts as the workspace allows. The parts
        are as even as whole rows of tiles permit."""
        columns, rows = columns or range(matrix.columns), rows or range(matrix.rows)
        width = (groups_of(columns.stop) - columns.start // GROUP) * GROUP
        first, blocks = rows.start // ROWS, blocks_of(len(rows))
        count = math.ceil(blocks / (self._workspace.numel() // (ROWS * width)))
        edges = [first + blocks * i // count for i in range(count + 1)]
        parts = [
            self.part([matrix], range(ROWS * a, min(ROWS * b, rows.stop)), columns)
            for a, b in itertools.pairwise(edges)
        ]
        return tuple(replace(part, begin=part.begin - rows.start) for part in parts)

    def part(self, matrices: Sequence[Matrix], rows: range, columns: range) -> Part:
        """Rows `rows` (from a multiple of 16 on) and columns `columns` of each of `matrices`, joined along the rows."""
        first = columns.start // GROUP
        tiles = groups_of(columns.stop) - first
        width = tiles * GROUP
        whole = self._workspace[: len(matrices) * len(rows) * width].view(-1, width)
        ops = [
            self._ops.add(self._dequant(matrix, rows, first, tiles, At(whole, i * len(rows) * width)))
            for i, matrix in enumerate(matrices)
        ]
        skipped = columns.start - first * GROUP
        return Part(rows.start, tuple(ops), whole[:, skipped : skipped + len(columns)])

    def _dequant(self, matrix: Matrix, rows: range, first: int, tiles: int, out: At) -> Launch:
        form = tile_type(matrix.type)
        warps = math.gcd(tiles, MAX_WARPS)  # a divisor, so that no block passes the last column
        block = rows.start // ROWS
        return Launch(
            "dequant.cu", "dequant", {f"WITH_{form.name}": 1, "WARPS": warps},
            (tiles // warps, blocks_of(len(rows))), WARP * warps,
            [At(matrix.tiles, first * form.bytes), form.number, rows.stop, block, groups_of(matrix.columns), out,
             tiles * GROUP],
        )  # fmt: skip

    def multiply(self, x: Tensor, parts: Sequence[Part], out: Tensor, *, scale: float = 1.0, add: bool = False) -> None:
        """out (n, rows) = scale * x (n, columns) times the parts' rows, or += that."""
        for part in parts:
            for op in part.ops:
                op()
            columns = out[:, part.begin : part.begin + len(part.weights)] if len(parts) > 1 else out
            self._device.multiply(x, part.weights, columns, scale=scale, add=add)

    def multiply_all(self, x: Tensor, matrices: Sequence[Sequence[Part]], out: Tensor) -> None:
        """The products with several matrices, next to each other in `out`."""
        begin = 0
        for parts in matrices:
            width = sum(len(part.weights) for part in parts)
            self.multiply(x, parts, out[:, begin : begin + width])
            begin += width


TensorSpec = tuple[tuple[int, ...], torch.dtype]


class Arena:
    """Memory that is divided again and again: every `carve` begins at its start."""

    def __init__(self, memory: Tensor) -> None:
        self.bytes = memory

    @staticmethod
    def of(nbytes: int, device: torch.device) -> Arena:
        """A newly allocated arena of zeros."""
        return Arena(torch.zeros(nbytes, dtype=torch.uint8, device=device))

    def carve(self, *specs: TensorSpec) -> Iterator[Tensor]:
        """Tensors of these shapes and types, one after the other."""
        at = 0
        for shape, dtype in specs:
            size = math.prod(shape) * dtype.itemsize
            yield self.bytes[at : at + size].view(dtype).view(shape)
            at += aligned(size)

    def after(self, *specs: TensorSpec) -> Arena:
        """The rest of the arena after `carve` of the same tensors."""
        return Arena(self.bytes[self.need(specs) :])

    @staticmethod
    def need(specs: Sequence[TensorSpec]) -> int:
        """Bytes that `carve` uses for these tensors."""
        return sum(aligned(math.prod(shape) * dtype.itemsize) for shape, dtype in specs)
