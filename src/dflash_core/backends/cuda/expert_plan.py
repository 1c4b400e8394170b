"""Distribution of a product with experts over a card: the parts of K, the grid, and the launch's struct.

A plan depends on shapes and on the card, never on rows or on the chosen experts, so the order of every sum is the same
at all widths. Only the device knows how much work a pass has; its thread blocks take equal shares of it. Mirrors
kernels/experts_stream.cuh.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from dflash_core.backends.cuda.activations import INT8, Rounding
from dflash_core.backends.cuda.launch import WARP
from dflash_core.backends.cuda.plan import Card, ReadsActs, Shape
from dflash_core.backends.cuda.repack import ROWS, blocks_of, groups_of, packed_bytes, tile_type
from dflash_core.errors import UnsupportedError

COLUMNS = 8  # the most columns of a work list entry
WARPS = 8  # warps of a thread block by default
SLOT_SETS = 4  # turns whose sums are in shared memory at once
MAX_PARTS = 8  # the most parts of K: warps share a block of rows, so their number is a multiple of this
MAX_PER_SM = 2  # thread blocks of a multiprocessor, whose warps share its registers
MATRICES, KINDS = 2, 2  # the most of each in a launch's struct
MATRIX_BYTES = 32  # size of a matrix's entry in the launch's struct; the address comes first
KIND_BYTES = MATRIX_BYTES * MATRICES + 16
LAUNCH_BYTES = KINDS * KIND_BYTES + 16
ENTRY_BYTES = 4 + 2 * COLUMNS


@dataclass(frozen=True, slots=True)
class Slabs:
    """The experts of one kind: `count` slabs of each of `shapes`, with the rows of one expert and `columns` columns."""

    shapes: tuple[Shape, ...]
    columns: int
    count: int = 1

    @property
    def nbytes(self) -> int:
        return self.count * sum(packed_bytes(shape.type, shape.rows, self.columns) for shape in self.shapes)

    def __str__(self) -> str:
        return f"{self.count} x {'+'.join(f'{s.type} {s.rows}' for s in self.shapes)} x {self.columns}"


@dataclass(frozen=True, slots=True)
class ExpertProduct:
    """The product of one launch: routed experts, of which a row uses `used`, and the shared expert if there is one."""

    routed: Slabs
    used: int
    shared: Slabs | None = None
    rounding: Rounding = INT8

    @property
    def kinds(self) -> tuple[Slabs, ...]:
        return (self.routed, self.shared) if self.shared else (self.routed,)

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return tuple(shape for kind in self.kinds for shape in kind.shapes)

    @property
    def ranks(self) -> int:
        """Experts per row, including the shared one."""
        return self.used + (self.shared is not None)

    @property
    def columns(self) -> int:
        return max(kind.columns for kind in self.kinds)

    @property
    def nbytes(self) -> int:
        return sum(kind.nbytes for kind in self.kinds)

    def idle_bytes(self, rows: int) -> float:
        """Bytes of the experts that none of `rows` rows uses, on average, if rows choose experts at random."""
        return self.routed.nbytes * (1 - self.used / self.routed.count) ** rows

    def __str__(self) -> str:
        return f"{self.used} of {' and '.join(map(str, self.kinds))}{self.rounding}"


class ExpertPlan(ReadsActs):
    """The plan of one product on one card. Raises UnsupportedError if activations do not fit in shared memory."""

    def __init__(self, product: ExpertProduct, card: Card) -> None:
        self.product, self.shapes, self.rounding = product, product.shapes, product.rounding
        self.stride = max(sum(ROWS * blocks_of(s.rows) for s in kind.shapes) for kind in product.kinds)
        self.tiles_k = max(groups_of(kind.columns) for kind in product.kinds)
        self.warps = WARPS
        self.shared_bytes = SLOT_SETS * self.warps * WARP * 16 + self.tiles_k * self.staged_block
        shared_limit = self.shared_limit_on(card)
        if self.shared_bytes > shared_limit:
            raise UnsupportedError(
                f"experts of {product.columns} columns need {self.shared_bytes:,} bytes of"
                f" shared memory, expected at most {shared_limit:,}; run it on the CPU"
            )
        self.per_sm = MAX_PER_SM if MAX_PER_SM * self.shared_bytes <= shared_limit else 1
        self.multiprocessors = card.multiprocessors
        self.grid = self.multiprocessors * self.per_sm

    def defines(self, rows: int) -> dict[str, object]:
        """Defines of the kernels of a pass over `rows` rows."""
        columns = 1 if rows == 1 else COLUMNS
        return {"COLUMNS": columns, "WARPS": self.warps, "PER_SM": self.per_sm, **self.read_defines}

    def pack(self, addresses: Sequence[Sequence[int]], places: Sequence[int] = (), used: int = 0) -> bytes:
        """The launch's struct, with the device addresses of the tiles of each kind's matrices. `places`: for each of
        the routed experts' matrices, the address of a table of the experts' own addresses; `used`: the address of the
        counts of rows that took each expert, which the launch adds to, or 0."""
        tables = [places or (0,) * MATRICES, (0,) * MATRICES]
        kinds = [self._packed(*of) for of in zip(self.product.kinds, addresses, tables, strict=False)]
        data = b"".join(kinds).ljust(KINDS * KIND_BYTES, b"\0") + struct.pack("<Qii", used, self.stride, 0)
        assert len(data) == LAUNCH_BYTES
        return data

    def _packed(self, kind: Slabs, addresses: Sequence[int], places: Sequence[int]) -> bytes:
        tiles = groups_of(kind.columns)
        split = 1 << min(tiles, MAX_PARTS).bit_length() - 1  # a power of two, as warps may share a block of rows
        offset, found = 0, b""
        for shape, address, place in zip(kind.shapes, addresses, places, strict=False):
            form, blocks = tile_type(shape.type), blocks_of(shape.rows)
            step = blocks * tiles * form.bytes
            found += struct.pack("<QQIiii", address, place, step, form.number, blocks, offset)
            offset += ROWS * blocks
        found = found.ljust(MATRIX_BYTES * MATRICES, b"\0")
        return found + struct.pack("<iiii", len(kind.shapes), tiles, split, kind.columns)
