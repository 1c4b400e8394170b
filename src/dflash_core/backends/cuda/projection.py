"""Matrices on the device, and the launches that multiply several of them with the same activations."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from dflash_core.backends.cuda.activations import INT8, Rounding
from dflash_core.backends.cuda.expert_plan import ExpertPlan
from dflash_core.backends.cuda.launch import (
    NO_INPUTS,
    WARP,
    Argument,
    Defines,
    Device,
    HasAddress,
    Inputs,
    Launch,
    pointer,
)
from dflash_core.backends.cuda.plan import Plan, Product, Shape, plan


@dataclass(frozen=True, slots=True)
class Matrix:
    """(rows, columns) weights of a ggml `type` as super-tiles (blocks of 16 rows, tiles along K, bytes) uint8.

    pinned: the host memory that `tiles` is a view of, where kernels read the matrix over the bus.
    """

    type: str
    rows: int
    columns: int
    tiles: Tensor
    pinned: HasAddress | None = None

    @property
    def address(self) -> int:
        """Of the tiles, for kernels."""
        return self.pinned.address if self.pinned is not None else self.tiles.data_ptr()

    @property
    def nbytes(self) -> int:
        return self.tiles.nbytes


@dataclass(frozen=True, slots=True)
class Acts:
    """Activations of up to 64 rows in both forms that matmuls read (kernels/acts.cuh)."""

    q8: Tensor
    f16: Tensor


class AnyProjection:
    """A product with rows, as seen by the code that writes its input and reads its output.

    The result is f32 (split_k, rows of the pass, width): partial sums that the next kernel adds up in order.
    """

    def __init__(self, plan: Plan | ExpertPlan, columns: int, split_k: int) -> None:
        self.plan, self.columns, self.split_k, self.width = plan, columns, split_k, plan.stride
        self.forms = plan.forms  # defines of a kernel that writes its activations

    def act_args(self, acts: Acts) -> tuple[Argument, Argument]:
        """The int8 and f16 activations as arguments; null for a form that the product does not read."""
        return (
            pointer(acts.q8 if self.plan.needs_q8 else None),
            pointer(acts.f16 if self.plan.needs_f16 else None),
        )


class Projection(AnyProjection):
    """Matrices that share their input, multiplied in one launch. Matrix i begins at column `offsets[i]`."""

    plan: Plan

    def __init__(
        self, device: Device, matrices: Sequence[Matrix], rounding: Rounding = INT8, *, split_k: int | None = None
    ) -> None:
        self.matrices = tuple(matrices)
        shapes = tuple(Shape(matrix.type, matrix.rows) for matrix in matrices)
        self.product = Product(shapes, matrices[0].columns, rounding, split_k)
        found = plan(shapes, matrices[0].columns, device.card, rounding=rounding, split_k=split_k)
        super().__init__(found, matrices[0].columns, found.split_k)
        self.offsets = found.offsets

    def makes_own(self, rows: int) -> bool:
        """Whether a product of `rows` rows can compute its own activations, if there is a kernel for that."""
        return rows == 1 and not self.plan.chunked(1)

    def launch(self, file: str, kernel: str, columns: int, args: Sequence[Argument], defines: Defines) -> Launch:
        """`kernel` over `columns` rows of activations; the launch's struct comes before `args`."""
        own, threads, shared = _pass(self.plan, columns)
        return Launch(file, kernel, {**own, **defines}, self.plan.grid, threads, [self._table, *args], shared)

    def launches_of(
        self, file: str, kernel: str, rows: int, args: Sequence[Argument], more: Inputs = NO_INPUTS
    ) -> list[Launch]:
        """`kernel` over `rows` rows of activations, in as few launches as shared memory allows. `more`: more defines,
        and arguments after the first block of eight rows."""
        return [
            self.launch(file, kernel, count, [*args, np.int32(first // 8), *more[1]], more[0])
            for first, count in _passes(self.plan, rows)
        ]

    def launches(self, acts: Acts, out: Tensor, rows: int) -> list[Launch]:
        """The product of `rows` rows of activations into `out`."""
        return self.launches_of("matmul.cu", "matmul", rows, [*self.act_args(acts), out, np.int32(rows)])

    @property
    def _table(self) -> bytes:
        """The launch's struct."""
        return self.plan.pack([matrix.address for matrix in self.matrices])


# Cached: the same for every layer, and most of the time that it takes to record a graph in the middle of an answer.
@functools.cache
def _pass(plan: Plan, columns: int) -> tuple[Defines, int, int]:
    """Defines, threads of a thread block and bytes of shared memory of a pass over `columns` columns."""
    return plan.defines(columns), plan.warps_at(columns) * WARP, plan.shared_bytes(columns)


_passes = functools.cache(Plan.passes)
