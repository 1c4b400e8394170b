"""Chooses the parts of K and the rows of each thread block of a launch by the time that a card is expected to need.

The number of parts decides the order of sums, so it depends only on shapes and the card; see plan.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from dflash_core.backends.cuda.repack import ROWS

WARPS = 16
FEWER_WARPS = 12  # of some products, see `warps_for`
MAX_SPLIT_K = 32
MAX_WIDE_SPLIT_K = 8  # the most parts of K that are chosen so that a pass holds all 64 columns
MAX_PLANES_SPLIT_K = 10  # the most parts of K that are chosen so that a pass with two planes holds 40 columns
NOMINAL_COLUMNS = 24  # the width that the number of parts is chosen for
# The most bytes of partials at NOMINAL_COLUMNS of a card with little shared memory: those that fit in a small L2, or
# this part of a larger one.
MIN_PARTIALS, PARTIALS_OF_L2 = 4_000_000, 1 / 4

# Rates of one streaming multiprocessor: bytes of weights per microsecond, bytes of staged activations per microsecond,
# and the cost in bytes of a second matrix in a thread block, which restarts its stream.
_STREAM, _STAGE, _RESTART = 32_000, 60_000, 100_000
_PARTIALS_RATE = 8_000_000  # bytes of partials, written and read again, per microsecond of the whole card
_STREAMING_WARPS = 8  # warps that saturate a multiprocessor's share of the memory bandwidth
_IN_CHUNKS = 1.15  # time of a product that stages activations in chunks, where a whole part of K takes 1
_LARGE_TILE = 4096  # bytes: so many of a tile that fewer warps keep the memory busy as well
_FEW_TILES = 5 * WARPS  # of a thread block, which divide evenly among fewer warps


@dataclass(frozen=True, slots=True)
class Parted:
    """A launch with `split_k` parts of K: the first thread block of each part, the first row block of each thread
    block, and the estimated time in microseconds."""

    cost: float
    split_k: int
    part_begin: tuple[int, ...]
    row_begin: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ShareLayout:
    """The inputs to the choice of the number of parts of K.

    `costs`: (blocks of 16 rows, bytes of a tile) of each matrix; `block`: bytes of 8 columns x 256 k of staged
    activations; `grid`: the most thread blocks; `shared_limit`: bytes of shared memory for activations and sums.
    `max_partials`: the most bytes of partials where they decide instead of the columns that fit; else 0.
    """

    tiles_k: int
    costs: tuple[tuple[int, int], ...]
    block: int
    grid: int
    shared_limit: int
    max_partials: int

    @property
    def stride(self) -> int:
        """Rows of all matrices, padded to 16."""
        return sum(ROWS * count for count, _ in self.costs)

    def fits(self, split_k: int, columns: int) -> bool:
        """Whether the staged activations of a pass over `columns` columns fit in shared memory."""
        return whole_bytes(-(-self.tiles_k // split_k), self.block, columns) <= self.shared_limit

    def choices(self, split_k: int | None, planes: int) -> list[int]:
        """Numbers of parts to choose from; only `split_k` if it is given."""
        found = [s for s in range(1, min(self.tiles_k, MAX_SPLIT_K, self.grid) + 1) if split_k in (None, s)]
        if split_k:
            return found
        if self.max_partials:
            return [s for s in found if s == 1 or s * self.stride * NOMINAL_COLUMNS * 4 <= self.max_partials]
        # Best if a pass holds all 64 columns, or 40 with two planes; otherwise 32, in two passes; otherwise what fits.
        wide = [s for s in found if s <= MAX_WIDE_SPLIT_K and self.fits(s, 64)]
        if not wide and planes > 1:
            wide = [s for s in found if s <= MAX_PLANES_SPLIT_K and self.fits(s, 40)]
        return wide or next((fit for c in (32, 16, 8) if (fit := [s for s in found if self.fits(s, c)])), [])

    def parted(self, split_k: int) -> Parted:
        """Thread blocks and rows for `split_k` parts of K."""
        lengths = [self.tiles_k * (s + 1) // split_k - self.tiles_k * s // split_k for s in range(split_k)]
        deal = _deal(lengths, min(self.grid, split_k * sum(count for count, _ in self.costs)))
        rows: list[int] = []
        busiest = 0
        known: dict[tuple[int, int], tuple[int, list[int]]] = {}
        for length, blocks in zip(lengths, deal):
            if (length, blocks) not in known:
                known[length, blocks] = _split([(count, size * length) for count, size in self.costs], blocks)
            busiest = max(busiest, known[length, blocks][0])
            rows += known[length, blocks][1]
        part_begin = tuple(itertools.accumulate(deal, initial=0))
        return Parted(self._microseconds(lengths, busiest), split_k, part_begin, tuple(rows))

    def _microseconds(self, lengths: Sequence[int], busiest: int) -> float:
        """The estimated time. `lengths`: tiles of each part of K; `busiest`: bytes of weights of the busiest thread
        block."""
        partials = len(lengths) * self.stride * NOMINAL_COLUMNS * 4 * 2 / _PARTIALS_RATE
        staged = max(lengths) * NOMINAL_COLUMNS / 8 * self.block / _STAGE
        streamed = busiest / _STREAM
        if not self.fits(len(lengths), NOMINAL_COLUMNS):
            streamed *= _IN_CHUNKS
            tallest = -(-busiest // (max(lengths) * max(size for _, size in self.costs)))  # blocks of 16 rows
            rounds = -(-tallest // WARPS)
            streamed *= max(1.0, _STREAMING_WARPS * rounds / tallest)
            staged *= rounds
        return streamed + partials + staged


def tile_bytes(block: int, columns: int) -> int:
    """Bytes of staged activations of one tile of K."""
    return -(-columns // 8) * block


def chunks_bytes(tiles: int, block: int, columns: int) -> int:
    """Bytes of shared memory of a thread block that stages chunks of `tiles` tiles of K: two of them."""
    return 2 * tiles * tile_bytes(block, columns)


def whole_bytes(tiles: int, block: int, columns: int, warps: int = WARPS) -> int:
    """Bytes of shared memory of a thread block that stages a whole part of K."""
    return warps * -(-columns // 8) * 512 + tiles * tile_bytes(block, columns)


def warps_for(tile: int, tiles: int) -> int:
    """Warps that divide the tiles of a thread block, `tiles` of them at most, each of at least `tile` bytes.

    Twelve have more registers each than sixteen, but fewer weights in flight. That is faster for large tiles and for
    few of them, otherwise only from 32 rows on (docs/notes/products.md). The number decides the order of sums, so it
    does not depend on the width.
    """
    return FEWER_WARPS if tile >= _LARGE_TILE or tiles < _FEW_TILES else WARPS


def _deal(lengths: Sequence[int], grid: int) -> list[int]:
    """Thread blocks per part of K, in proportion to the lengths; each part gets at least one."""
    deal = [1] * len(lengths)
    for _ in range(grid - len(lengths)):
        busiest = max(range(len(lengths)), key=lambda s: (lengths[s] / deal[s], -s))
        deal[busiest] += 1
    return deal


def _split(costs: Sequence[tuple[int, int]], parts: int) -> tuple[int, list[int]]:
    """Divide a sequence of row blocks, (count, bytes of one) per matrix, into `parts` runs with a small largest share.

    A run that enters another matrix pays for a restart. Runs that stay inside one matrix, or inside a few small ones,
    are preferred if that does not make the largest share larger. Returns the share and the first row block of each run.
    """
    across = _smallest_share(costs, parts)
    fair = sum(count * size for count, size in costs) // parts
    groups: list[list[tuple[int, int]]] = []
    for matrix in costs:
        if groups and _bytes([*groups[-1], matrix]) <= fair:
            groups[-1].append(matrix)
        else:
            groups.append([matrix])
    if not 1 < len(groups) <= parts:
        return across
    deal = _deal([_bytes(group) for group in groups], parts)
    shares = [_smallest_share(group, runs) for group, runs in zip(groups, deal)]
    largest = max(share for share, _ in shares)
    if largest > across[0]:
        return across
    starts, base = [], 0
    for group, (_, inside) in zip(groups, shares):
        starts += [base + start for start in inside]
        base += sum(count for count, _ in group)
    return largest, starts


def _bytes(costs: Sequence[tuple[int, int]]) -> int:
    """Bytes of matrices in one run, including the cost of restarts."""
    return sum(count * size for count, size in costs) + _RESTART * (len(costs) - 1)


def _smallest_share(costs: Sequence[tuple[int, int]], parts: int) -> tuple[int, list[int]]:
    """The minimum of the largest share if runs may span matrices, and the first row block of each run."""
    total = sum(count * size for count, size in costs)
    low, high = max(-(-total // parts), max(size for _, size in costs)), total + _RESTART * len(costs)
    while low < high:
        middle = (low + high) // 2
        if _cut(costs, parts, middle)[1]:
            high = middle
        else:
            low = middle + 1
    return low, _cut(costs, parts, low)[0]


def _cut(costs: Sequence[tuple[int, int]], parts: int, limit: int) -> tuple[list[int], bool]:
    """The first row block of each run if runs are filled up to `limit` bytes, and whether all row blocks fit."""
    starts: list[int] = []
    matrix, used, base = 0, 0, 0  # the next row block is number `used` of `matrix`, whose first one is `base`
    for _ in range(parts):
        starts.append(base + used)
        left, fresh = limit, True
        while matrix < len(costs):
            count, size = costs[matrix]
            if not fresh:
                left -= _RESTART
            take = min(count - used, max(0, left) // size)
            used += take
            left -= take * size
            if used < count:
                break
            base, matrix, used = base + count, matrix + 1, 0
            fresh = False
    return starts, matrix == len(costs)
