"""Distribution of a matmul launch over a card: the parts of split-K, and the rows of each thread block.

A plan depends on shapes and on the card, never on the number of columns. So the order of every sum, and every bit of a
column, is the same at all widths. Mirrors kernels/matmul_launch.cuh.

Weights should be read once at any width. A thread block needs the activations of its part of K in shared memory: all of
them, if K is split into parts that are small enough, or otherwise in chunks. Both give the same bits.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dflash_core.backends.cuda.activations import F16_BLOCK, INT8, Rounding, q8_read
from dflash_core.backends.cuda.repack import ROWS, TILE_TYPES, TileType, blocks_of, groups_of, packed_bytes, tile_type
from dflash_core.backends.cuda.shares import (
    FEWER_WARPS,
    MIN_PARTIALS,
    PARTIALS_OF_L2,
    WARPS,
    ShareLayout,
    chunks_bytes,
    warps_for,
    whole_bytes,
)
from dflash_core.errors import UnsupportedError

if TYPE_CHECKING:
    from dflash_core.backends.cuda.driver import CardFacts

MAX_SEGMENTS, MAX_GRID = 6, 256
SEGMENT_BYTES = 32  # size of one matrix's entry in the launch's struct; the address comes first
MAX_COLUMNS = 64

_PREFETCHED_COLUMNS = 8  # the widest pass that one more prefetched tile makes faster; wider ones get slower

# For kernels/matmul_chunks.cuh.
_WHOLE_PARTS = 160 << 10  # with this much shared memory, whole parts of K are staged at most widths
_MAX_CHUNK = 8  # the most tiles of a chunk; more hardly reduce the number of barriers
_WIDE = 32  # columns from which fewer warps with more registers each are faster; here they decide no sum

# For kernels/matmul_claims.cuh.
_MAX_SUMS = 64 << 10  # the most shared memory for sums of tiles; those of a head would leave little L1


@dataclass(frozen=True, slots=True)
class Shape:
    """One matrix of a launch: its ggml type and its rows. The launch's matrices share K and their input."""

    type: str
    rows: int


class ReadsActs:
    """What the matrices `shapes` of a launch read of activations under `rounding`: f16 and f32 matrices always f16."""

    shapes: tuple[Shape, ...]
    rounding: Rounding

    @property
    def _kinds(self) -> list[TileType]:
        return [tile_type(shape.type) for shape in self.shapes]

    @property
    def needs_q8(self) -> bool:
        """Whether the launch reads int8 activations."""
        return not self.rounding.half and any(not kind.half_activations for kind in self._kinds)

    @property
    def needs_f16(self) -> bool:
        """Whether the launch reads f16 activations."""
        return self.rounding.half or any(kind.half_activations for kind in self._kinds)

    @property
    def plane_bits(self) -> int:
        """Bits of a second plane of int8 activations: as many as all matrices of the launch allow."""
        bits = (kind.plane_bits for kind in self._kinds if not kind.half_activations)
        return min(bits, default=0) if self.rounding.planes > 1 else 0

    @property
    def forms(self) -> dict[str, object]:
        """Defines of int8 activations, for the kernels that write and read them (kernels/acts.cuh)."""
        if not self.needs_q8:
            return {}
        if bits := self.plane_bits:
            return {"PLANE_BITS": bits}
        return {"SPANS": self.rounding.spans} if self.rounding.spans > 1 else {}

    @property
    def formats(self) -> dict[str, object]:
        """Defines of the matrices' formats."""
        names = {kind.name for kind in self._kinds}
        return {f"WITH_{name}": 1 for name in TILE_TYPES if name in names}

    @property
    def read_defines(self) -> dict[str, object]:
        """All defines of a kernel that reads them."""
        return {**self.formats, **self.forms, **({"ACTS_F16": 1} if self.rounding.half else {})}

    @property
    def staged_block(self) -> int:
        """Bytes of 8 columns x 256 k of activations in shared memory, in the largest form that the launch reads."""
        f16 = F16_BLOCK if self.needs_f16 else 0
        q8 = q8_read(self.plane_bits, self.rounding.spans) if self.needs_q8 else 0
        return max(f16, q8)

    def shared_limit_on(self, card: Card) -> int:
        """Bytes of shared memory that the formats' tables leave for the rest."""
        return card.shared_bytes - sum(tile_type(name).table for name in {shape.type for shape in self.shapes})


@dataclass(frozen=True, slots=True)
class Product(ReadsActs):
    """The matrices of one launch, which share K and their input. `rounding`: how the input is rounded; `split_k`: the
    number of parts of K, if it is fixed."""

    shapes: tuple[Shape, ...]
    columns: int
    rounding: Rounding = INT8
    split_k: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all weights."""
        return sum(packed_bytes(shape.type, shape.rows, self.columns) for shape in self.shapes)

    def __str__(self) -> str:
        matrices = "+".join(f"{shape.type} {shape.rows}" for shape in self.shapes)
        parts = f" in {self.split_k}" if self.split_k else ""
        return f"{matrices} x {self.columns}{self.rounding}{parts}"


@dataclass(frozen=True, slots=True)
class KernelConfig:
    """How a launch is computed, where the shapes leave a choice, at every width alike.

    `split_k`: the number of parts of K, which decides the order of sums; the other fields do not change results.
    `chunked`: stage activations in chunks of K; None: only where a whole part does not fit in shared memory.
    `prefetch`: tiles that a warp prefetches into the L2 before the previous kernel has ended; None for the default: one
    in narrow passes on cards that launch kernels early. `claimed`: with a single row, warps claim tiles as they
    become free; None: if sums of all tiles fit.
    """

    prefetch: int | None = None
    chunked: bool | None = None
    split_k: int | None = None
    claimed: bool | None = None


@dataclass(frozen=True, slots=True)
class Card:
    """The properties of a card that a plan depends on."""

    multiprocessors: int
    shared_bytes: int  # dynamic shared memory that a thread block may have
    config: KernelConfig = KernelConfig()  # only tests and measurements set it
    overlaps: bool = False  # whether it can start a kernel while the previous one still runs
    l2_bytes: int = 0

    @classmethod
    def of(cls, facts: CardFacts) -> Card:
        return cls(facts.processors, facts.shared_bytes, overlaps=facts.overlaps, l2_bytes=facts.l2_bytes)

    @property
    def max_partials(self) -> int:
        """The most bytes of partials of a launch that stay in the L2 for the next one."""
        return max(MIN_PARTIALS, int(self.l2_bytes * PARTIALS_OF_L2))


@dataclass(frozen=True, slots=True)
class Plan(ReadsActs):
    """How the work of one launch is distributed.

    K is split into `split_k` parts, each with partial sums of `stride` rows. Matrix i begins at row `offsets[i]`; rows
    are padded to 16. `part_begin[s]`: first thread block of part s; the last item is the grid. `row_begin[b]`: first
    block of 16 rows of thread block b, counted over all matrices. `warps`: the shares of a thread block's tiles, which
    decide the order of sums.
    """

    shapes: tuple[Shape, ...]
    tiles_k: int
    split_k: int
    part_begin: tuple[int, ...]
    row_begin: tuple[int, ...]
    offsets: tuple[int, ...]
    stride: int
    rounding: Rounding
    shared_limit: int
    overlaps: bool
    config: KernelConfig
    warps: int = WARPS

    @property
    def grid(self) -> int:
        return self.part_begin[-1]

    @property
    def longest_part(self) -> int:
        """Tiles of the longest part of K."""
        return -(-self.tiles_k // self.split_k)

    def shared_bytes(self, columns: int) -> int:
        """Bytes of dynamic shared memory of a pass over `columns` columns."""
        if self.chunked(columns):
            return chunks_bytes(self._chunk(columns), self.staged_block, columns)
        whole = self._whole(columns)
        return max(whole, self._claimed_bytes) if self._claimed(columns) else whole

    def chunked(self, columns: int) -> bool:
        """Whether a pass over `columns` columns stages activations in chunks, not whole parts of K."""
        return self._whole(columns) > self.shared_limit if self.config.chunked is None else self.config.chunked

    def warps_at(self, columns: int) -> int:
        """Warps of a thread block of a pass over `columns` columns: those that claim tiles or work in chunks may be
        another number than the shares."""
        if self.chunked(columns):
            return WARPS if columns < _WIDE else FEWER_WARPS
        return WARPS if self._claimed(columns) else self.warps

    def _whole(self, columns: int) -> int:
        """Bytes of shared memory for whole parts of K."""
        return whole_bytes(self.longest_part, self.staged_block, columns, self.warps)

    def _claimed(self, columns: int) -> bool:
        """Whether warps claim tiles as they become free; only with one column."""
        claims = columns == 1 and not self.chunked(1) and self.config.claimed is not False
        return claims and self._sums_bytes <= _MAX_SUMS and self._claimed_bytes <= self.shared_limit

    @property
    def _sums_bytes(self) -> int:
        """Bytes of shared memory for the sums of each tile, for one column."""
        return self.max_tiles * ROWS * 4 * (1 if self.rounding.half else self.rounding.spans)

    @property
    def _claimed_bytes(self) -> int:
        """Bytes of shared memory of a launch over one column with claimed tiles."""
        return self.longest_part * self.staged_block + self._sums_bytes

    @property
    def max_tiles(self) -> int:
        """The most tiles of any thread block."""
        begins = [self.tiles_k * part // self.split_k for part in range(self.split_k + 1)]
        return max((begins[part + 1] - begins[part]) * (end - first) for part, first, end in self.shares())

    def defines(self, columns: int) -> dict[str, object]:
        """Defines of the kernels of a pass over `columns` columns."""
        found: dict[str, object] = {"COLUMNS": columns, **self.read_defines}
        if self.chunked(columns):
            found["CHUNK"] = self._chunk(columns)
        elif prefetch := self._prefetch(columns):
            found["PREFETCH"] = prefetch
        if self._claimed(columns):
            found["CLAIMED"] = 1
        if (warps := self.warps_at(columns)) != WARPS:
            found["WARPS"] = warps
        if self.warps != warps:
            found["SHARES"] = self.warps
        return found

    def _prefetch(self, columns: int) -> int:
        if self.config.prefetch is not None:
            return self.config.prefetch
        return int(self.overlaps and columns <= _PREFETCHED_COLUMNS)

    def _chunk(self, columns: int) -> int:
        """Tiles of a chunk: two chunks fit in shared memory, and the longest part is split evenly."""
        fitting = min(_MAX_CHUNK, self.shared_limit // chunks_bytes(1, self.staged_block, columns))
        return -(-self.longest_part // -(-self.longest_part // max(1, fitting)))

    def passes(self, columns: int) -> tuple[tuple[int, int], ...]:
        """Launches that together cover `columns`: (first column, columns), as even as multiples of 8 permit."""
        widest = max(c for c in range(8, MAX_COLUMNS + 1, 8) if c == 8 or self._fits(c))
        blocks = -(-columns // 8)
        count = -(-blocks * 8 // widest)
        starts = [blocks * i // count * 8 for i in range(count)] + [columns]
        return tuple((a, b - a) for a, b in itertools.pairwise(starts))

    def _fits(self, columns: int) -> bool:
        need = chunks_bytes(1, self.staged_block, columns) if self.chunked(columns) else self._whole(columns)
        return need <= self.shared_limit

    def pack(self, addresses: Sequence[int]) -> bytes:
        """The launch's struct, with the device address of each matrix's tiles."""
        blocks = [blocks_of(shape.rows) for shape in self.shapes]
        ends = list(itertools.accumulate(blocks))
        segments = b"".join(
            struct.pack("<Qiiiiii", address, tile_type(s.type).number, count, s.rows, offset, end - count, 0)
            for address, s, count, offset, end in zip(addresses, self.shapes, blocks, self.offsets, ends, strict=True)
        )
        body = segments.ljust(MAX_SEGMENTS * SEGMENT_BYTES, b"\0") + _numbers(self)
        return body + bytes(-len(body) % 8)

    def shares(self) -> list[tuple[int, int, int]]:
        """For each thread block: its part of K, its first block of 16 rows, and the end of its blocks."""
        total = sum(blocks_of(shape.rows) for shape in self.shapes)
        return [
            (part, a, b)
            for part, (first, end) in enumerate(itertools.pairwise(self.part_begin))
            for a, b in itertools.pairwise((*self.row_begin[first:end], total))
        ]


# Cached: the same for every layer, graph and width that a plan is for.
@functools.cache
def _numbers(plan: Plan) -> bytes:
    """What follows the matrices in a launch's struct: sizes, and the table of shares."""
    ends = list(itertools.accumulate(blocks_of(shape.rows) for shape in plan.shapes))
    per_part = -(-(1 << 32) // plan.split_k) % (1 << 32)  # 0 for a single part, where it is not read
    numbers = (len(plan.shapes), plan.tiles_k, plan.split_k, plan.stride, ends[-1], per_part)
    shares = [(first, part, bisect.bisect_right(ends, first)) for part, first, _ in plan.shares()]
    table = b"".join(struct.pack("<HBB", *share) for share in [*shares, (0, plan.split_k, 0)])
    return struct.pack("<5iI", *numbers) + table.ljust((MAX_GRID + 1) * 4, b"\0")


def plan(
    shapes: Sequence[Shape], columns: int, card: Card, *, rounding: Rounding = INT8, split_k: int | None = None
) -> Plan:
    """Distribute a launch of `shapes`, each (rows, `columns`), over a card.

    `split_k` fixes the number of parts (1 for a head). Raises UnsupportedError if no number of parts fits.
    """
    return _plan(Product(tuple(shapes), columns, rounding, split_k), card)


# Cached: a model has few shapes in many layers, and is planned twice, to predict its memory and to load it.
@functools.cache
def _plan(product: Product, card: Card) -> Plan:
    config, shapes, rounding = card.config, product.shapes, product.rounding
    if product.split_k:
        config = replace(config, claimed=False)  # a head finishes whole blocks of rows
    if not 0 < len(shapes) <= MAX_SEGMENTS:
        raise UnsupportedError(f"{len(shapes)} matrices in one launch, expected 1 to {MAX_SEGMENTS}")
    costs = tuple((blocks_of(s.rows), tile_type(s.type).bytes) for s in shapes)
    max_partials = card.max_partials if card.shared_bytes < _WHOLE_PARTS else 0
    shared_limit, block = product.shared_limit_on(card), product.staged_block
    grid = min(card.multiprocessors, MAX_GRID)
    layout = ShareLayout(groups_of(product.columns), costs, block, grid, shared_limit, max_partials)
    choices = layout.choices(product.split_k or config.split_k, rounding.planes)
    if not choices or chunks_bytes(1, block, 1) > shared_limit:
        raise UnsupportedError(
            f"a matrix of {product.columns:,} columns, expected one that fits {card.shared_bytes:,} bytes of shared "
            "memory; run it on the CPU"
        )
    # A matrix that is too small for the whole card is cheapest in few parts; a larger one with even shares.
    best = min(map(layout.parted, choices), key=lambda parted: parted.cost)
    blocks = [count for count, _ in costs]
    offsets = tuple(ROWS * begin for begin in itertools.accumulate(blocks[:-1], initial=0))
    found = Plan(
        shapes, layout.tiles_k, best.split_k, best.part_begin, best.row_begin, offsets, layout.stride, rounding,
        shared_limit, card.overlaps, config,
    )  # fmt: skip
    return replace(found, warps=warps_for(min(size for _, size in costs), found.max_tiles))
