"""How split attention is distributed over a card: defines, grid, shared memory and scratch of kernels/attention.cuh."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch

from dflash_core.backends.cuda.launch import WARP, ceil_div
from dflash_core.backends.cuda.products import Arena, TensorSpec
from dflash_core.backends.cuda.state import MAX_NODES, PASS_ROWS
from dflash_core.cache_types import F16, GROUP, RECENT_STEP, CachePair, CacheType
from dflash_core.errors import cpu_only

PREPARE_WARPS = 4  # heads that a block of attn_prepare, attn_rows and draft_prepare writes
MAX_STAGES = 3
# A block uses no more shared memory than this, even if a card has more: the rest of the SM's memory is L1, which the
# matmuls before and after it need. With 203 KB per block an attention layer on an H200 took 36 us more.
MAX_SHARED = 163 << 10
MAX_PARTS = 64
MAX_RECENT_SPLITS = 16  # a block has at most one near or recent part beside its share of the splits
ROW_WARPS = 3  # row warps of a block with enough rows: with 4 column warps they use all registers of an SM
COLUMN_WARPS = 4  # column warps of such a block
PACKED_WARPS = 8  # warps that share a tile of packed keys and values and convert it to f16
MAX_UNPACKED = 256  # numbers of a row of packed keys or values that all warps can convert together
MAX_MAKERS = 8  # warps of an attn_single_row block that make the row: as in kernels/attention_single_row.cu
PATH_BYTES = MAX_NODES + 128  # shared memory of attn_split for nodes that are not straight, and the block's share
ACCUMULATORS = 96  # the most registers of a thread for output sums: with more, the others spill
SMALL_HEAD, SMALL_TILES = 64, 4  # tiles of 16 rows of such heads: scores take as many registers as sums there


HEAD_DIMS = (64, 128, 256, 512)


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Attention heads of a model; `rotary` dimensions of each are rotated."""

    head_dim: int
    heads: int
    kv_heads: int
    rotary: int

    def __post_init__(self) -> None:
        if self.head_dim not in HEAD_DIMS:
            expected = ", ".join(map(str, HEAD_DIMS[:-1]))
            raise cpu_only(f"attention heads of {self.head_dim} dimensions, expected {expected} or {HEAD_DIMS[-1]}")
        if self.rotary % 64 or self.rotary > self.head_dim:
            raise cpu_only(
                f"rotary embedding of {self.rotary} of a head's {self.head_dim} dimensions, expected a multiple of 64"
            )

    @property
    def group(self) -> int:
        """Query heads per kv head."""
        return self.heads // self.kv_heads

    @property
    def query_scale(self) -> float:
        """The factor that attn_prepare multiplies queries by: scores become exponents of two."""
        return math.log2(math.e) / math.sqrt(self.head_dim)

    def packed_rows(self, rows: int) -> int:
        """Rows of one kv head in a pass of `rows`."""
        return rows * self.group


@dataclass(frozen=True, slots=True)
class SplitOrder:
    """The order in which a row's sums are added.

    `tile`: keys per tile; `chunk`: adjacent tiles per split; `column_warps`: warps that share a tile. `near`: how many
    of a row's last tiles are separate parts (kernels/attention.cu); 0 if rows are not nodes of trees.
    A session uses one order for all widths: only then are results equal bit for bit. `blocks` per kv head share the
    work of a tree's pass; results do not depend on their number. `kv`: the types of cached keys and values; of its
    recent window `recent` parts have the positions that are not near (kernels/attention_parts.cuh).
    """

    tile: int
    chunk: int
    column_warps: int
    splits: int
    near: int = 0
    blocks: int = 0
    kv: CachePair = F16
    recent: int = 0

    @staticmethod
    def of(
        heads: HeadShape, slots: int, processors: int, shared_limit: int, *, trees: bool, kv: CachePair = F16
    ) -> SplitOrder:
        """For a cache of `slots` positions on a card with `processors` SMs and `shared_limit` bytes per block.

        With a long context an SM gets one split of one kv head, and up to kv_heads - 1 SMs get none: only one
        block fits on an SM, so one block more than there are SMs would double the time. With a short context there are
        at most as many splits as groups of tiles. `trees`: rows are nodes of trees. Raises UnsupportedError if not even
        the smallest tile fits.
        """
        blocks = max(1, processors // heads.kv_heads)
        # A warp converts whole groups of values to f16.
        widest = 4 if kv == F16 else min(PACKED_WARPS, heads.head_dim // GROUP)
        recent = min(max(kv.recent // RECENT_STEP - 1, 0), MAX_RECENT_SPLITS)
        for tile, column_warps in ((64, widest), (32, min(widest, 4)), (16, 2)):
            near = ceil_div(MAX_NODES - 1, tile) + 1 if trees else 0
            order = SplitOrder(tile, max(1, RECENT_STEP // tile), column_warps, 1, near, blocks, kv, recent)
            if SplitLaunch.of(heads, order, 1, shared_limit).shared <= shared_limit:
                break
        else:
            raise cpu_only(
                f"found {shared_limit:,} bytes of shared memory, expected enough for attention heads of "
                f"{heads.head_dim} dimensions"
            )
        splits = min(MAX_PARTS - order.near - recent, blocks)
        return replace(order, splits=max(1, min(splits, ceil_div(slots, order.tile * order.chunk))))

    @property
    def parts(self) -> int:
        """Partial results per row."""
        return self.near + self.recent + self.splits


def tile_stride(kind: CacheType, head_dim: int) -> int:
    """Bytes from one row to the next in shared memory: STRIDE of kernels/kv.cuh."""
    return kind.row_bytes(head_dim) + (32 if kind.name == "bf16" else 0)


@dataclass(frozen=True, slots=True)
class WarpLayout:
    """How a block's warps are arranged over rows and columns; results do not depend on it.

    With more `row_warps` there are fewer and larger blocks, so each key is read fewer times. With fewer `column_warps`
    than the order has, a warp processes several of the order's columns. `once`: all warps convert a tile of packed
    keys or values to f16 together before they multiply; otherwise each warp converts what it needs.
    """

    row_warps: int
    column_warps: int
    once: bool = False

    @staticmethod
    def of(order: SplitOrder, tiles: int, head_dim: int) -> list[WarpLayout]:
        """The layouts for `tiles` tiles of 16 rows; of layouts with equally large blocks, the first is the best.

        Unpacking a tile once is faster from two tiles of rows per row warp on (docs/notes/memory.md).
        """
        narrow = WarpLayout(1, order.column_warps)
        if not order.near or tiles == 1 or (order.kv != F16 and tiles <= ROW_WARPS):
            return [narrow]
        wide = WarpLayout(min(ROW_WARPS, tiles), min(COLUMN_WARPS, order.column_warps))
        # A warp unpacks whole rows, eight at a time, of up to so many numbers.
        packed = F16.k not in (order.kv.k, order.kv.v) and head_dim <= MAX_UNPACKED
        large = head_dim == LARGE_HEAD and order.kv == F16 and tiles >= LARGE_HEAD_WARPS.row_warps
        tall = [LARGE_HEAD_WARPS] if large else []
        return [replace(wide, once=True), wide, narrow] if packed else [*tall, wide, narrow]


LARGE_HEAD = 512
# A warp has no registers for queries of such heads. With two columns of warps each read of them serves two products,
# and 64 rows share the keys; unpacking would spill. 310 us a layer at 32,768 positions and 24 rows, not 409 (H200).
LARGE_HEAD_WARPS = WarpLayout(4, 2)


@dataclass(frozen=True, slots=True)
class SplitLaunch:
    """The launch of attn_split or draft_split for passes of `rows` rows."""

    heads: HeadShape
    order: SplitOrder
    rows: int
    layout: WarpLayout
    row_tiles: int
    stages: int
    half_tiles: int = 0  # tiles of unpacked keys and values in shared memory
    recent_stages: int = 0  # tiles of a recent window's halves in flight

    @staticmethod
    def of(heads: HeadShape, order: SplitOrder, rows: int, shared_limit: int) -> SplitLaunch:
        """For passes of `rows` rows: the largest blocks that fit, then as many tiles in flight as fit."""
        layouts = WarpLayout.of(order, ceil_div(heads.packed_rows(rows), 16), heads.head_dim)
        found = [SplitLaunch.laid(heads, order, rows, one, shared_limit) for one in layouts]
        fitting = [one for one in found if one.shared <= shared_limit]
        return max(fitting, key=lambda one: one.block_rows, default=found[-1])

    @staticmethod
    def laid(heads: HeadShape, order: SplitOrder, rows: int, layout: WarpLayout, shared_limit: int) -> SplitLaunch:
        """The largest blocks of a layout that fit; the smallest if none fits, which may take more than the limit."""
        limit = min(shared_limit, MAX_SHARED)
        tiles, row_warps = ceil_div(heads.packed_rows(rows), 16), layout.row_warps
        dim_tiles = heads.head_dim // layout.column_warps // 8
        # With many warps, one tile can load while they process the other half of the previous tile.
        min_stages, max_stages = (1 if row_warps > 1 else 2), (1 if layout.once else MAX_STAGES)
        highest = SMALL_TILES if heads.head_dim == SMALL_HEAD else max(1, ACCUMULATORS // (4 * dim_tiles))
        for tallest in range(highest, 0, -1):
            blocks = ceil_div(tiles, tallest * row_warps)
            row_tiles = ceil_div(tiles, blocks * row_warps)
            # With separate buffers K and V are unpacked together, with two barriers per step instead of four.
            half_tiles = (2, 1) if layout.once else (0,)
            for stages, halves in product(range(max_stages, min_stages - 1, -1), half_tiles):
                launch = SplitLaunch(heads, order, rows, layout, row_tiles, stages, halves, int(order.recent > 0))
                if launch.shared <= limit:
                    return launch._with_most_recent_stages(limit)
        return launch

    def _with_most_recent_stages(self, limit: int) -> SplitLaunch:
        deeper = [replace(self, recent_stages=n) for n in range(MAX_STAGES, 1, -1) if self.recent_stages]
        return next((one for one in deeper if one.shared <= limit), self)

    @property
    def block_rows(self) -> int:
        return 16 * self.row_tiles * self.layout.row_warps

    @property
    def defines(self) -> dict[str, int]:
        return {
            "HEAD_DIM": self.heads.head_dim,
            "ROTARY": self.heads.rotary,
            "GROUP": self.heads.group,
            "ROW_TILES": self.row_tiles,
            "ROW_WARPS": self.layout.row_warps,
            "COLUMN_WARPS": self.layout.column_warps,
            "TILE": self.order.tile,
            "CHUNK": self.order.chunk,
            "STAGES": self.stages,
            **({"NEAR": self.order.near} if self.order.near else {}),
            **({"COLUMNS": self.order.column_warps} if self.layout.column_warps != self.order.column_warps else {}),
            **({"UNPACK_ONCE": self.half_tiles} if self.half_tiles else {}),
            **({"RECENT_SPLITS": self.order.recent, "RECENT_STAGES": self.recent_stages} if self.order.recent else {}),
        }

    @property
    def grid(self) -> tuple[int, int, int]:
        if self.order.near:
            return self.order.blocks, self.heads.kv_heads, 1
        return ceil_div(self.heads.packed_rows(self.rows), self.block_rows), self.heads.kv_heads, self.order.splits

    @property
    def block(self) -> int:
        return WARP * self.layout.row_warps * self.layout.column_warps

    @property
    def holds_row(self) -> bool:
        """Whether attn_single_row can run a pass of one row, the root: each block holds the whole row."""
        return self.layout.row_warps == 1 and self.heads.group <= self.block_rows

    @property
    def single_row_block(self) -> int:
        """Threads of a block of attn_single_row, whose grid is that of attn_split: MAKERS warps of
        kernels/attention_single_row.cu beside those that attend."""
        return self.block + WARP * min(self.heads.group + 2, MAX_MAKERS)

    @property
    def single_row_shared(self) -> int:
        return self.shared - PATH_BYTES

    @property
    def shared(self) -> int:
        """Bytes of dynamic shared memory: what `_holding` says, unpacked tiles, and the ring of K and V tiles."""
        # In near and recent parts, a block of several row warps has one tile of rows for each.
        rows = self.block_rows if self.layout.row_warps == 1 else 16 * self.layout.row_warps
        newest = self._holding(rows) + self.recent_stages * self._stage(F16) if self.recent_stages else 0
        halves = 2 * self.order.tile * self.heads.head_dim * self.half_tiles
        return max(self._holding(self.block_rows) + halves + self.stages * self._stage(self.order.kv), newest)

    def _stage(self, kv: CachePair) -> int:
        """A tile of K and one of V."""
        return self.order.tile * sum(tile_stride(kind, self.heads.head_dim) for kind in (kv.k, kv.v))

    def _holding(self, rows: int) -> int:
        """Q, P, the exchange of columns, and PATH_BYTES."""
        dim, tile, node_rows = self.heads.head_dim, self.order.tile, 16 * self.layout.row_warps
        rows = max(rows, node_rows * ceil_div(self.heads.group, node_rows))  # one node may have more heads
        path = PATH_BYTES if self.order.near else 0
        return 2 * rows * dim + 2 * rows * tile + 4 * self.order.column_warps * rows + path


class Splits:
    """Partial results of split attention for the widest pass, carved from `arena`, whose size includes `pieces`."""

    def __init__(self, order: SplitOrder, heads: HeadShape, arena: Arena) -> None:
        self.order = order
        self.out, self.stats, self.q = arena.carve(*self.pieces(order, heads))

    @staticmethod
    def pieces(order: SplitOrder, heads: HeadShape) -> Sequence[TensorSpec]:
        """Partial sums, softmax statistics and queries."""
        rows = heads.kv_heads * heads.packed_rows(PASS_ROWS)
        sizes = order.parts * rows * heads.head_dim, order.parts * rows * 2, rows * heads.head_dim
        return [((size,), dtype) for size, dtype in zip(sizes, (torch.float32, torch.float32, torch.float16))]
