"""How split attention is laid over a card: defines, grid, shared memory and scratch of kernels/attention.cuh."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dflash_core.backends.cuda.launch import WARP, ceil_div
from dflash_core.backends.cuda.state import MAX_NODES
from dflash_core.cache_types import F16, GROUP, CachePair, CacheType
from dflash_core.errors import Code, UnsupportedError

MAX_STAGES = 3
# Of shared memory a block takes no more than this, although a card may have it: what is left of the SM is L1, through
# which the matmuls around it stream. With 203 KB per block an attention layer of an H200 cost 36 us more.
MOST_SHARED = 163 << 10
MAX_PARTS = 64
PACKED_WARPS = 8  # that share a tile of packed keys and values, which they turn into halves
PATH_BYTES = MAX_NODES + 128  # of attn_split, for one node's ancestors
ACCUMULATORS = 96  # registers of a thread that hold output sums: what leaves room for the rest without spilling


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Attention heads of a model; `rotary` dimensions of each are rotated."""

    head_dim: int
    heads: int
    kv_heads: int
    rotary: int

    def __post_init__(self) -> None:
        if self.head_dim not in (64, 128, 256):
            raise UnsupportedError(
                f"heads of {self.head_dim}, expected 64, 128 or 256; run it on the CPU", code=Code.NOT_ON_THIS_DEVICE
            )
        if self.rotary % 64 or self.rotary > self.head_dim:
            raise UnsupportedError(
                f"{self.rotary} rotated dimensions of {self.head_dim}, expected a multiple of 64; run it on the CPU",
                code=Code.NOT_ON_THIS_DEVICE,
            )

    @property
    def group(self) -> int:
        """Query heads per kv head."""
        return self.heads // self.kv_heads

    @property
    def query_scale(self) -> float:
        """What attn_prepare multiplies queries by: scores come out as exponents of two."""
        return math.log2(math.e) / math.sqrt(self.head_dim)

    def packed_rows(self, rows: int) -> int:
        """Rows of one kv head in a pass of `rows`."""
        return rows * self.group


@dataclass(frozen=True, slots=True)
class SplitOrder:
    """The order of a row's sums: keys per tile, tiles per split that lie side by side, warps that share a tile, splits,
    and how many of a row's last tiles are parts of their own (kernels/attention.cu), none where rows are no tree's.

    One for all widths of a session: results are equal bit for bit only under the same order. `blocks` per kv head share
    the work of a tree's pass; no bit depends on them. `kv`: how keys and values are kept.
    """

    tile: int
    chunk: int
    column_warps: int
    splits: int
    near: int = 0
    blocks: int = 0
    kv: CachePair = F16

    @staticmethod
    def of(
        heads: HeadShape, slots: int, processors: int, shared_limit: int, *, trees: bool, kv: CachePair = F16
    ) -> SplitOrder:
        """For a cache of `slots` positions on a card of `processors` SMs with `shared_limit` bytes for a block.

        With a long context every SM gets one split of one kv head; with a short cache there are no more splits than
        tiles to give them. `trees`: rows are nodes of trees. Raises UnsupportedError where not even the smallest tile
        fits.
        """
        blocks = ceil_div(processors, heads.kv_heads)
        # A warp turns whole groups of values into halves.
        most = 4 if kv == F16 else min(PACKED_WARPS, heads.head_dim // GROUP)
        for tile, column_warps in ((64, most), (32, min(most, 4)), (16, 2)):
            near = ceil_div(MAX_NODES - 1, tile) + 1 if trees else 0
            order = SplitOrder(tile, max(1, 128 // tile), column_warps, 1, near, blocks, kv)
            if SplitLaunch.of(heads, order, 1, shared_limit).shared <= shared_limit:
                break
        else:
            raise UnsupportedError(
                f"heads of {heads.head_dim} do not fit {shared_limit:,} bytes of shared memory; run it on the CPU",
                code=Code.NOT_ON_THIS_DEVICE,
            )
        wanted = min(MAX_PARTS - order.near, blocks)
        return replace(order, splits=max(1, min(wanted, ceil_div(slots, order.tile * order.chunk))))

    @property
    def parts(self) -> int:
        """Partial results of a row."""
        return self.splits + self.near


def tile_stride(kind: CacheType, head_dim: int) -> int:
    """Bytes from a row to the next in shared memory: STRIDE of kernels/kv.cuh."""
    return kind.row_bytes(head_dim) + (32 if kind.name == "bf16" else 0)


@dataclass(frozen=True, slots=True)
class SplitLaunch:
    """One width's launch of attn_split or draft_split."""

    heads: HeadShape
    order: SplitOrder
    rows: int
    row_tiles: int
    row_warps: int
    stages: int

    @staticmethod
    def of(heads: HeadShape, order: SplitOrder, rows: int, shared_limit: int, *, row_warps: int = 1) -> SplitLaunch:
        """For passes of `rows`: the largest blocks that fit, then as many tiles on their way as fit.

        More `row_warps` read a key fewer times, from fewer and larger blocks.
        """
        limit = min(shared_limit, MOST_SHARED)
        tiles = -(-heads.packed_rows(rows) // 16)
        dim_tiles = heads.head_dim // order.column_warps // 8
        for most in range(max(1, ACCUMULATORS // (4 * dim_tiles)), 0, -1):
            blocks = -(-tiles // (most * row_warps))
            row_tiles = -(-tiles // (blocks * row_warps))
            for stages in range(MAX_STAGES, 1, -1):
                launch = SplitLaunch(heads, order, rows, row_tiles, row_warps, stages)
                if launch.shared <= limit:
                    return launch
        return launch

    @property
    def block_rows(self) -> int:
        return 16 * self.row_tiles * self.row_warps

    @property
    def defines(self) -> dict[str, int]:
        return {
            "HEAD_DIM": self.heads.head_dim,
            "ROTARY": self.heads.rotary,
            "GROUP": self.heads.group,
            "ROW_TILES": self.row_tiles,
            "ROW_WARPS": self.row_warps,
            "COLUMN_WARPS": self.order.column_warps,
            "TILE": self.order.tile,
            "CHUNK": self.order.chunk,
            "STAGES": self.stages,
            **({"NEAR": self.order.near} if self.order.near else {}),
        }

    @property
    def grid(self) -> tuple[int, int, int]:
        if self.order.near:
            return self.order.blocks, self.heads.kv_heads, 1
        return ceil_div(self.heads.packed_rows(self.rows), self.block_rows), self.heads.kv_heads, self.order.splits

    @property
    def block(self) -> int:
        return WARP * self.row_warps * self.order.column_warps

    @property
    def shared(self) -> int:
        """Bytes of dynamic shared memory: Q, P, the ring of K and V tiles, the exchange between column warps."""
        dim, tile = self.heads.head_dim, self.order.tile
        # One node of many heads may need more rows than a block of a narrow pass.
        rows = max(self.block_rows, 16 * self.row_warps * ceil_div(self.heads.group, 16 * self.row_warps))
        stage = tile * (tile_stride(self.order.kv.k, dim) + tile_stride(self.order.kv.v, dim))
        queries = 2 * rows * (dim + tile) + 4 * self.order.column_warps * rows
        return queries + self.stages * stage + (PATH_BYTES if self.order.near else 0)

    @property
    def partial_shape(self) -> tuple[int, int, int, int]:
        """Shape of the f32 partial sums; the statistics are f32 of the same shape but for a last dimension of 2."""
        return self.order.parts, self.heads.kv_heads, self.heads.packed_rows(self.rows), self.heads.head_dim
