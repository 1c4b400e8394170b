"""A weight matrix that is either stored as floats or dequantised from the file at each use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from dflash_core.formats.weights import WeightFile

# Dequantise at most this many weights at a time, so that a packed 248,320-row head needs no 5 GB of scratch.
PACKED_CHUNK = 1 << 24
SLOW_ROWS, FAST_ROWS = (2, 3), 4
"""Numbers of rows whose products torch takes longer for than for FAST_ROWS (docs/notes/policy.md); they are padded."""


class Matrix(Protocol):
    """A matrix of `shape` (out, in)."""

    shape: tuple[int, int]

    def __call__(self, x: Tensor) -> Tensor:
        """`x` (n, in) -> (n, out)."""

    def rows(self, ids: Sequence[int]) -> Tensor:
        """Some of its rows, (len(ids), in): an embedding look-up."""


class DenseMatrix:
    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self.shape = (weight.shape[0], weight.shape[1])

    def __call__(self, x: Tensor) -> Tensor:
        if x.dim() == 2 and x.shape[0] in SLOW_ROWS:
            return F.linear(F.pad(x, (0, 0, 0, FAST_ROWS - x.shape[0])), self.weight)[: x.shape[0]]
        return F.linear(x, self.weight)

    def rows(self, ids: Sequence[int]) -> Tensor:
        return self.weight[torch.tensor(ids, dtype=torch.long)]


class BiasedMatrix:
    """A matrix and what is added to its products, (out,)."""

    def __init__(self, matrix: Matrix, bias: Tensor) -> None:
        self.matrix, self.bias, self.shape = matrix, bias, matrix.shape

    def __call__(self, x: Tensor) -> Tensor:
        return self.matrix(x) + self.bias

    def rows(self, ids: Sequence[int]) -> Tensor:
        return self.matrix.rows(ids)


class PackedMatrix:
    """Stays quantised in the file: slow, but a model larger than memory runs.

    `slab`: the matrix is that one of a stack of them.
    """

    def __init__(self, file: WeightFile, name: str, dtype: torch.dtype, slab: int | None = None) -> None:
        *_, out, width = file.tensors[name].shape
        self.file, self.name, self.dtype, self.shape, self.slab = file, name, dtype, (out, width), slab

    def __call__(self, x: Tensor) -> Tensor:
        out, width = self.shape
        step = max(1, PACKED_CHUNK // width)
        parts = [F.linear(x, self._floats(slice(at, min(at + step, out)))) for at in range(0, out, step)]
        return torch.cat(parts, dim=-1)

    def rows(self, ids: Sequence[int]) -> Tensor:
        return torch.cat([self._floats(slice(row, row + 1)) for row in ids])

    def _floats(self, rows: slice) -> Tensor:
        if self.slab is None:
            found = self.file.float32(self.name, rows)
        else:
            found = self.file.float32(self.name, slice(self.slab, self.slab + 1))[0, rows]
        return torch.from_numpy(found).to(self.dtype)


class Weights:
    """Reads tensors by name from a file, as vectors or matrices of one dtype, dense or packed."""

    def __init__(self, file: WeightFile, *, dtype: torch.dtype = torch.float32, packed: bool = False) -> None:
        self.file, self.dtype, self.packed = file, dtype, packed

    def vector(self, name: str) -> Tensor:
        """A small tensor, always as floats."""
        return torch.from_numpy(self.file.float32(name).copy()).to(self.dtype)

    def stack(self, name: str) -> Sequence[Matrix]:
        """A tensor (count, out, in) as `count` matrices."""
        if self.packed:
            count = self.file.tensors[name].shape[0]
            return [PackedMatrix(self.file, name, self.dtype, slab) for slab in range(count)]
        return [DenseMatrix(slab) for slab in torch.from_numpy(self.file.float32(name)).to(self.dtype)]

    def projection(self, name: str, biased: bool) -> Matrix:
        """The matrix NAME.weight, with NAME.bias where it is `biased`."""
        matrix = self.matrix(name + ".weight")
        return BiasedMatrix(matrix, self.vector(name + ".bias")) if biased else matrix

    def matrix(self, name: str) -> Matrix:
        if self.packed:
            return PackedMatrix(self.file, name, self.dtype)
        return DenseMatrix(torch.from_numpy(self.file.float32(name)).to(self.dtype))
