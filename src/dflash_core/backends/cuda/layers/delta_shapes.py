"""How the gated delta net is laid over a card: defines, grids, shared memory and buffers of kernels/gdn.cuh."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from dflash_core.backends.cuda.launch import WARP, ceil_div
from dflash_core.backends.cuda.plan import Card
from dflash_core.backends.cuda.state import MAX_NODES, PASS_ROWS
from dflash_core.errors import Code, UnsupportedError

DIM = 128  # of a key and of a value head
PAST = 3  # earlier inputs that the convolution reads
SCAN_SLICE = 64  # columns of a head's state in one block of gdn_scan
BATCH = 16  # rows of the pending path that gdn_recurrence stages at a time
MOST_WIDTH = 128  # columns of a block
# A block that takes more leaves the multiprocessor so little L1 that the matmuls after it are slower.
MOST_SHARED = 160 << 10
ORDER_INTS = 1 + MAX_NODES  # of gdn_order: how many visits, then these
SCHEDULERS = 4  # of a multiprocessor: each issues one warp's instruction at a time
VISIT_SLOTS, COLUMN_SLOTS = 35, 100  # instructions that a node costs a warp, and each column of its lanes
# Clocks from one node to the next however few warps there are, and for each column; measured on an H200.
VISIT_CLOCKS, COLUMN_CLOCKS = 540, 30


@dataclass(frozen=True, slots=True)
class DeltaShape:
    """A model's gated delta net: value head h reads key head h % key_heads."""

    key_heads: int
    value_heads: int

    @staticmethod
    def of(key_heads: int, value_heads: int, key_dim: int, value_dim: int, conv_kernel: int) -> DeltaShape:
        """Raises UnsupportedError for heads or a convolution that the kernels are not written for."""
        if (key_dim, value_dim, conv_kernel) != (DIM, DIM, PAST + 1):
            raise UnsupportedError(
                f"delta net heads of {key_dim} and {value_dim} with a convolution over {conv_kernel}, expected "
                f"{DIM}, {DIM} and {PAST + 1}; run it on the CPU",
                code=Code.NOT_ON_THIS_DEVICE,
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
        """Heads of q, k and v: what gdn_prepare gives a block to."""
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
        """Scratch of one pass, f32, shared by all layers."""
        return {
            "q": (self.key_heads, PASS_ROWS, DIM),
            "v": (self.value_heads, PASS_ROWS, DIM),
            "beta": (self.value_heads, PASS_ROWS),
            "out": (PASS_ROWS, self.value_heads, DIM),
        }


@dataclass(frozen=True, slots=True)
class DeltaLaunch:
    """One width's launches: passes of `nodes` rows, blocks of `warps` warps whose lanes hold `columns` columns each of
    the states of one key head's value heads, and how many levels of kept states are in shared memory."""

    shape: DeltaShape
    nodes: int
    columns: int = 2
    warps: int = 4
    shared_levels: int = 0

    @staticmethod
    def of(shape: DeltaShape, nodes: int, card: Card) -> DeltaLaunch:
        """Raises UnsupportedError where shared memory cannot hold a pass of `nodes` rows."""
        launch = DeltaLaunch.fitting(shape, nodes, card)
        if launch is None:
            least = min(one.shared for one in _blocks(shape, nodes))
            raise UnsupportedError(
                f"passes of {nodes} rows need {least:,} bytes of shared memory, found {card.shared_bytes:,}; "
                "run it on the CPU",
                code=Code.NOT_ON_THIS_DEVICE,
            )
        return launch

    @staticmethod
    @functools.cache
    def fitting(shape: DeltaShape, nodes: int, card: Card) -> DeltaLaunch | None:
        """Of what fits, the blocks whose busiest multiprocessor is done first, of equals about one for each. The cut
        does not change a bit."""
        fitting = [one for one in _blocks(shape, nodes) if one.shared <= card.shared_bytes]
        if not fitting:
            return None
        return min(
            fitting, key=lambda one: (one.cost(card.multiprocessors), abs(one.grid - card.multiprocessors))
        ).with_levels(card)

    def with_levels(self, card: Card) -> DeltaLaunch:
        """The same with as many levels in shared memory as fit."""
        room = (min(card.shared_bytes, MOST_SHARED) - self.rows_bytes) // (DIM * self.width * 4)
        return replace(self, shared_levels=max(0, min(room, first_pass_levels(self.nodes))))

    def cost(self, multiprocessors: int) -> int:
        """Of a pass, for comparing: one row waits for the state, more for the node before or for slots to issue in."""
        rounds = ceil_div(self.grid, multiprocessors)
        if self.nodes == 1:
            return rounds * self.width
        slots = ceil_div(self.warps, SCHEDULERS) * (VISIT_SLOTS + COLUMN_SLOTS * self.columns)
        return rounds * max(slots, VISIT_CLOCKS + COLUMN_CLOCKS * self.columns)

    @property
    def defines(self) -> dict[str, int]:
        return {**self.state_defines, "NODES": self.nodes, "SHARED_LEVELS": self.shared_levels}

    @property
    def state_defines(self) -> dict[str, int]:
        """Those of gdn_state.cuh."""
        return {**self.shape.defines, "COLUMNS": self.columns, "WARPS": self.warps}

    @property
    def pass_defines(self) -> dict[str, int]:
        """Those of gdn.cu, whose kernels know nothing of how the state is cut."""
        return {**self.shape.defines, "NODES": self.nodes}

    @property
    def width(self) -> int:
        """Columns of the state in one block."""
        return 4 * self.columns * self.warps

    @property
    def prepare_grid(self) -> int:
        return self.shape.chunks

    @property
    def prepare_block(self) -> int:
        return 8 * WARP

    @property
    def grid(self) -> int:
        """Of gdn_recurrence."""
        return self.shape.value_heads * DIM // self.width

    @property
    def block(self) -> int:
        return self.warps * WARP

    @property
    def rows_bytes(self) -> int:
        """Of shared memory, but for staged rows and kept states: term by term as gdn_recurrence.cu lays it out."""
        rows = self.nodes * (2 * DIM + self.width + 2 * self.shape.heads_per_key + 1) * 4
        return ceil_div(rows + (MAX_NODES + BATCH) * 4, 16) * 16

    @property
    def shared(self) -> int:
        """Bytes of dynamic shared memory."""
        staged = BATCH * (DIM + self.width + self.shape.heads_per_key) * 4
        return self.rows_bytes + max(staged, self.shared_levels * DIM * self.width * 4)

    def far_levels(self, later_pass: bool) -> int:
        """Levels that do not fit in shared memory: what a pass needs in global memory."""
        needed = later_pass_levels(self.nodes) if later_pass else first_pass_levels(self.nodes)
        return max(0, needed - self.shared_levels)

    def flush_grid(self, layers: int) -> tuple[int, int]:
        """Of gdn_flush, which commits all layers at once; its first blocks are gdn_recurrence's."""
        return self.grid + self.shape.chunks, layers


def _blocks(shape: DeltaShape, nodes: int) -> Iterator[DeltaLaunch]:
    # One row is bound by the state's bytes, which pairs of columns read in whole sectors.
    for columns in (2,) if nodes == 1 else (2, 3, 4):
        for warps in range(4, 17):
            width = 4 * columns * warps
            if width <= MOST_WIDTH and shape.heads_per_key * DIM % width == 0:
                yield DeltaLaunch(shape, nodes, columns, warps)


def first_pass_levels(nodes: int) -> int:
    """Kept states at a time, at most, of a tree of `nodes` nodes. kernels/gdn_order.cuh says in which order it is run.

    A node keeps its state for a second child with children; all but the largest hold less than half of its nodes.
    """
    levels = 0
    while nodes >= 5:
        levels, nodes = levels + 1, (nodes - 1) // 2
    return levels


def later_pass_levels(nodes: int) -> int:
    """The same for a pass of `nodes` rows below the nodes of passes before it, which are run again but do not count."""
    return nodes.bit_length() - 1


@dataclass(frozen=True, slots=True)
class ScanLaunch:
    """The launches of kernels/gdn_chunks.cu, which read prompts a chunk of PASS_ROWS rows at a time."""

    shape: DeltaShape
    stages: int

    @staticmethod
    def of(shape: DeltaShape, shared_limit: int) -> ScanLaunch | None:
        """With two chunks in flight where shared memory can hold them; None where not even one fits."""
        launches = [ScanLaunch(shape, stages) for stages in (2, 1)]
        return next((one for one in launches if max(one.scan_shared, one.solve_shared) <= shared_limit), None)

    @property
    def defines(self) -> dict[str, int]:
        return {**self.shape.defines, "STAGES": self.stages}

    @property
    def turns(self) -> tuple[range, range]:
        """Heads that gdn_rows takes together, counted over q, k and v: queries and keys, then values."""
        keys = 2 * self.shape.key_heads
        return range(keys), range(keys, self.shape.chunks)

    def solve_grid(self, chunks: int) -> tuple[int, int]:
        return chunks, self.shape.value_heads

    @property
    def solve_shared(self) -> int:
        """Bytes: two tiles of halves, the system and its inverse, decay and beta."""
        return 2 * PASS_ROWS * DIM * 2 + 2 * PASS_ROWS * (PASS_ROWS + 4) * 4 + 2 * PASS_ROWS * 4

    @property
    def scan_grid(self) -> int:
        return self.shape.value_heads * DIM // SCAN_SLICE

    @property
    def scan_shared(self) -> int:
        """Bytes: the ring of chunks, the state as halves, U twice."""
        stage = 3 * PASS_ROWS * DIM + PASS_ROWS * PASS_ROWS + PASS_ROWS * SCAN_SLICE + 2 * PASS_ROWS
        return 2 * (self.stages * stage + DIM * SCAN_SLICE + 2 * PASS_ROWS * SCAN_SLICE)
