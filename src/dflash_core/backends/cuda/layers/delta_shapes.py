"""How the gated delta net is distributed over a card: defines, grids, shared memory and buffers of kernels/gdn.cuh."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from dflash_core.backends.cuda.launch import WARP, ceil_div
from dflash_core.backends.cuda.plan import Card
from dflash_core.backends.cuda.repack import groups_of
from dflash_core.backends.cuda.state import MAX_NODES, PASS_ROWS
from dflash_core.errors import cpu_only

DIM = 128  # dimensions of a key head and of a value head
PAST = 3  # previous inputs that the convolution reads
SCAN_SLICE = 64  # columns of a head's state in one block of gdn_scan
PREPARE_THREADS = 8 * WARP  # of gdn_prepare
BATCH = 16  # rows of the pending path that gdn_recurrence stages at a time
TURNS_AHEAD = 2  # visits that it reads before it knows that they exist
MAX_WIDTH = 128  # the most state columns of a block
# A block that uses more shared memory leaves the multiprocessor so little L1 that the matmuls after it are slower.
MAX_SHARED = 160 << 10
MAX_PER_KEY = 16  # value heads of a key head: half a warp of gdn_single_row has a lane for each
ROW_WARPS = 4  # of gdn_single_row, beside those with the state: they make q, k, v and the gates
MAKERS = 8  # of gdn_recurrence in a first pass: at least so many warps beside those with the state make its rows
# Rows of the widest pass that has makers: every block makes all rows, from 32 on gdn_prepare is quicker.
MAX_MADE_ROWS = 24
# The most warps of a block, makers included, that leave enough registers for lanes of so many columns.
MAX_WARPS = {2: 16, 3: 16, 4: 8}
INPUT_ROWS = 4  # rows of a head of q, k or v that a warp of gdn_out stores where it commits
ORDER_INTS = MAX_NODES + TURNS_AHEAD  # output of gdn_order: the visits, then zeros
SCHEDULERS = 4  # warp schedulers per multiprocessor: each issues one warp's instruction at a time
# Clocks of the recurrence, fitted to an H100: of a scheduler per node and warp, and more per column of a lane; at least
# from one node to the next, with any number of warps, and more per column; before the first node, per column.
WARP_CLOCKS, WARP_COLUMN_CLOCKS = 35, 104
VISIT_CLOCKS, COLUMN_CLOCKS = 220, 62
START_CLOCKS = 1000


@dataclass(frozen=True, slots=True)
class DeltaShape:
    """A model's gated delta net: value head h reads key head h % key_heads."""

    key_heads: int
    value_heads: int

    @staticmethod
    def of(key_heads: int, value_heads: int, key_dim: int, value_dim: int, conv_kernel: int) -> DeltaShape:
        """Raises UnsupportedError for head shapes or a convolution that the kernels do not support."""
        if (key_dim, value_dim, conv_kernel) != (DIM, DIM, PAST + 1):
            raise cpu_only(
                f"delta net heads of {key_dim} and {value_dim} with a convolution over {conv_kernel}, expected "
                f"{DIM}, {DIM} and {PAST + 1}"
            )
        if value_heads > MAX_PER_KEY * key_heads:
            raise cpu_only(
                f"{value_heads} delta net value heads over {key_heads} key heads, expected at most {MAX_PER_KEY} for "
                "each key head"
            )
        return DeltaShape(key_heads, value_heads)

    @property
    def heads_per_key(self) -> int:
        """Value heads that read one key head."""
        return self.value_heads // self.key_heads

    @property
    def defines(self) -> dict[str, int]:
        return {"K_HEADS": self.key_heads, "V_HEADS": self.value_heads}

    @property
    def chunks(self) -> int:
        """Heads of q, k and v: gdn_prepare has one block for each, and gdn_out where it commits."""
        return 2 * self.key_heads + self.value_heads

    @property
    def channels(self) -> int:
        """Channels of the convolution."""
        return self.chunks * DIM

    def layer_shapes(self, capacity: int) -> dict[str, tuple[int, ...]]:
        """Memory of one layer for trees of up to `capacity` nodes, f32."""
        return {
            "s": (self.value_heads, DIM, DIM),
            "conv": (PAST, self.channels),
            "inputs": (capacity, self.channels),
            "k": (2, self.key_heads, capacity, DIM),
            "u": (self.value_heads, capacity, DIM),
            "decay": (2, self.value_heads, capacity),
        }

    def pass_shapes(self) -> dict[str, tuple[int, ...]]:
        """Scratch memory of one pass, f32, shared by all layers."""
        return {
            "q": (self.key_heads, PASS_ROWS, DIM),
            "v": (self.value_heads, PASS_ROWS, DIM),
            "beta": (self.value_heads, PASS_ROWS),
            "out": (PASS_ROWS, self.value_heads, DIM),
        }


@dataclass(frozen=True, slots=True)
class DeltaLaunch:
    """The launches of passes of `nodes` rows.

    A block has `warps` warps with the state. Each lane holds `columns` columns of the states of one key head's value
    heads. `shared_levels`: levels of saved states in shared memory. `makers`: warps that make the rows of a first pass;
    0: gdn_prepare makes them, as in later passes.
    """

    shape: DeltaShape
    nodes: int
    columns: int = 2
    warps: int = 4
    shared_levels: int = 0
    makers: int = 0

    @staticmethod
    def of(shape: DeltaShape, nodes: int, card: Card) -> DeltaLaunch:
        """Raises UnsupportedError if shared memory cannot hold a pass of `nodes` rows."""
        launch = DeltaLaunch.fitting(shape, nodes, card)
        if launch is None:
            need = min(block.shared for block in _blocks(shape, nodes))
            raise cpu_only(f"passes of {nodes} rows need {need:,} bytes of shared memory, found {card.shared_bytes:,}")
        return launch

    @staticmethod
    @functools.cache
    def fitting(shape: DeltaShape, nodes: int, card: Card) -> DeltaLaunch | None:
        """Of the block sizes that fit, the one whose busiest multiprocessor finishes first. Ties go to the grid
        closest to one block per multiprocessor. The choice does not change any result bit."""
        fitting = [one for one in _blocks(shape, nodes) if one.shared <= card.shared_bytes]
        if not fitting:
            return None
        return min(
            fitting, key=lambda one: (one.cost(card.multiprocessors), abs(one.grid - card.multiprocessors))
        ).complete(card)

    def complete(self, card: Card) -> DeltaLaunch:
        """The same launch with as many levels in shared memory as fit, and with makers if they fit."""
        fitting = (min(card.shared_bytes, MAX_SHARED) - self.rows_bytes) // (DIM * self.width * 4)
        levels = max(0, min(fitting, first_pass_levels(self.nodes)))
        given = replace(self, shared_levels=levels)
        made = replace(given, makers=_makers(self.nodes, self.columns, self.warps))
        return made if made.shared <= card.shared_bytes else given

    def cost(self, multiprocessors: int) -> int:
        """A relative cost of a pass. One row waits for the state's bytes; more rows wait for the previous node or for
        their scheduler."""
        rounds = ceil_div(self.grid, multiprocessors)
        if self.nodes == 1:
            return rounds * self.width
        scheduler = ceil_div(self.warps, SCHEDULERS) * (WARP_CLOCKS + WARP_COLUMN_CLOCKS * self.columns)
        node = max(scheduler, VISIT_CLOCKS + COLUMN_CLOCKS * self.columns)
        return rounds * (START_CLOCKS * self.columns + self.nodes * node)

    @property
    def defines(self) -> dict[str, int]:
        return {
            **self.state_defines, "NODES": self.nodes, "SHARED_LEVELS": self.shared_levels, "MAKERS": self.makers
        }  # fmt: skip

    @property
    def state_defines(self) -> dict[str, int]:
        """Defines of gdn_state.cuh."""
        return {**self.shape.defines, "COLUMNS": self.columns, "WARPS": self.warps}

    @property
    def pass_defines(self) -> dict[str, int]:
        """Defines of gdn.cu, whose kernels do not depend on how the state is divided."""
        return {**self.shape.defines, "NODES": self.nodes}

    @property
    def width(self) -> int:
        """Columns of the state in one block."""
        return 4 * self.columns * self.warps

    @property
    def grid(self) -> int:
        """Grid of gdn_recurrence and of gdn_single_row."""
        return self.shape.value_heads * DIM // self.width

    @property
    def block(self) -> int:
        """Threads of a block of gdn_recurrence."""
        return (self.warps + self.makers) * WARP

    @property
    def single_row_block(self) -> int:
        """Threads of a block of gdn_single_row, whose grid is that of gdn_recurrence."""
        return (self.warps + ROW_WARPS) * WARP

    @property
    def committing_grid(self) -> int:
        """Grid of gdn_out where it also commits the convolution's state: a warp for each head of q, k and v and share
        of the rows, then one for each row's groups of activations."""
        shares = ceil_div(self.nodes, min(self.nodes, INPUT_ROWS))
        return shares * self.shape.chunks + self.nodes * groups_of(self.shape.value_heads * DIM)

    @property
    def rows_bytes(self) -> int:
        """Bytes of shared memory without staged rows and saved states: term by term as in gdn_recurrence.cu."""
        rows = self.nodes * (2 * DIM + self.width + 2 * self.shape.heads_per_key + 2) * 4
        return ceil_div(rows + (MAX_NODES + TURNS_AHEAD) * 4, 16) * 16

    @property
    def shared(self) -> int:
        """Bytes of dynamic shared memory."""
        at_first = self.rows_bytes + BATCH * (DIM + self.width + self.shape.heads_per_key) * 4
        if self.makers:
            at_first = ceil_div(at_first, 512) * 512 + PAST * (2 * DIM + self.width) * 4
        return max(at_first, self.rows_bytes + self.shared_levels * DIM * self.width * 4)

    def far_levels(self, later_pass: bool) -> int:
        """Levels that do not fit in shared memory and are stored in global memory."""
        needed = later_pass_levels(self.nodes) if later_pass else first_pass_levels(self.nodes)
        return max(0, needed - self.shared_levels)

    def flush_grid(self, layers: int) -> tuple[int, int]:
        """Grid of gdn_flush, which commits all layers at once; its first blocks are those of gdn_recurrence."""
        return self.grid + self.shape.chunks, layers


def _makers(nodes: int, columns: int, warps: int) -> int:
    """Makers beside `warps` warps with the state: MAKERS or one for every two rows, and as many more as give each
    scheduler as many warps, which costs no registers. None where registers would not suffice: with few makers two
    kernels are as quick."""
    if nodes > MAX_MADE_ROWS:
        return 0
    block = ceil_div(warps + max(MAKERS, nodes // 2), SCHEDULERS) * SCHEDULERS
    return block - warps if block <= MAX_WARPS[columns] else 0


def _blocks(shape: DeltaShape, nodes: int) -> Iterator[DeltaLaunch]:
    # One row is bound by reading the state; pairs of columns read whole sectors.
    for columns in (2,) if nodes == 1 else (2, 3, 4):
        for warps in range(4, 17):
            width = 4 * columns * warps
            if width <= MAX_WIDTH and shape.heads_per_key * DIM % width == 0:
                yield DeltaLaunch(shape, nodes, columns, warps)


def first_pass_levels(nodes: int) -> int:
    """The most states saved at the same time in a tree of `nodes` nodes. kernels/gdn_order.cuh explains the order.

    A node saves its state for a second child that has children. All child subtrees but the largest hold less than
    half of its nodes.
    """
    levels = 0
    while nodes >= 5:
        levels, nodes = levels + 1, (nodes - 1) // 2
    return levels


def later_pass_levels(nodes: int) -> int:
    """The same for a pass of `nodes` rows below the nodes of previous passes, which run again but do not count."""
    return nodes.bit_length() - 1


@dataclass(frozen=True, slots=True)
class ScanLaunch:
    """The launches of kernels/gdn_chunks.cu, which process prompts in chunks of PASS_ROWS rows."""

    shape: DeltaShape
    stages: int

    @staticmethod
    def of(shape: DeltaShape, shared_limit: int) -> ScanLaunch | None:
        """With two chunks in flight if shared memory can hold them; None if not even one fits."""
        launches = [ScanLaunch(shape, stages) for stages in (2, 1)]
        return next((one for one in launches if max(one.scan_shared, one.solve_shared) <= shared_limit), None)

    @property
    def defines(self) -> dict[str, int]:
        return {**self.shape.defines, "STAGES": self.stages}

    @property
    def turns(self) -> tuple[range, range]:
        """Heads that one launch of gdn_rows processes, counted over q, k and v: queries and keys, then values."""
        keys = 2 * self.shape.key_heads
        return range(keys), range(keys, self.shape.chunks)

    def solve_grid(self, chunks: int) -> tuple[int, int]:
        return chunks, self.shape.value_heads

    @property
    def solve_shared(self) -> int:
        """Bytes of shared memory: two f16 tiles, the system and its inverse, decay and beta."""
        return 2 * PASS_ROWS * DIM * 2 + 2 * PASS_ROWS * (PASS_ROWS + 4) * 4 + 2 * PASS_ROWS * 4

    @property
    def scan_grid(self) -> int:
        return self.shape.value_heads * DIM // SCAN_SLICE

    @property
    def scan_shared(self) -> int:
        """Bytes of shared memory: the ring of chunks, the state as f16, U twice."""
        stage = 3 * PASS_ROWS * DIM + PASS_ROWS * PASS_ROWS + PASS_ROWS * SCAN_SLICE + 2 * PASS_ROWS
        return 2 * (self.stages * stage + DIM * SCAN_SLICE + 2 * PASS_ROWS * SCAN_SLICE)
