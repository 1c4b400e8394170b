"""How the gated delta net is laid over a card: defines, grids, shared memory and buffers of kernels/gdn.cuh."""

from __future__ import annotations

from dataclasses import dataclass

from dflash_core.backends.cuda.launch import WARP
from dflash_core.backends.cuda.state import PASS_ROWS
from dflash_core.errors import Code, UnsupportedError

DIM = 128  # of a key and of a value head
PAST = 3  # inputs that the convolution looks back on
SCAN_SLICE = 64  # columns of a head's state in one block of gdn_scan
BLOCK_NODES = 8  # nodes that one step of the forward substitution solves


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
    def chunks(self) -> int:
        """Heads of q, k and v: what gdn_prepare gives a block to."""
        return 2 * self.key_heads + self.value_heads

    @property
    def channels(self) -> int:
        """Channels of the convolution."""
        return self.chunks * DIM

    def layer_shapes(self, capacity: int) -> dict[str, tuple[int, ...]]:
        """Memory of one layer for trees of up to `capacity` nodes: f32 but for `decay`, which is f64."""
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
    """One width's launches: passes of `nodes` rows, the state of a head in `slices` blocks of gdn_tree."""

    shape: DeltaShape
    nodes: int
    slices: int = 2
    batch: int = 16

    @staticmethod
    def of(shape: DeltaShape, nodes: int, shared_limit: int) -> DeltaLaunch:
        """The fewest slices whose blocks fit `shared_limit` bytes. Raises UnsupportedError where none does."""
        launches = [DeltaLaunch(shape, nodes, *choice) for choice in ((2, 16), (4, 16), (8, 8))]
        for launch in launches:
            if launch.tree_shared <= shared_limit:
                return launch
        raise UnsupportedError(
            f"passes of {nodes} rows need {launches[-1].tree_shared:,} bytes of shared memory, found "
            f"{shared_limit:,}; run it on the CPU",
            code=Code.NOT_ON_THIS_DEVICE,
        )

    @property
    def defines(self) -> dict[str, int]:
        return {
            "K_HEADS": self.shape.key_heads,
            "V_HEADS": self.shape.value_heads,
            "NODES": self.nodes,
            "SLICES": self.slices,
            "BATCH": self.batch,
        }

    @property
    def width(self) -> int:
        """Columns of a head's state in one block."""
        return DIM // self.slices

    @property
    def prepare_grid(self) -> int:
        return self.shape.chunks

    @property
    def prepare_block(self) -> int:
        return 8 * WARP

    @property
    def tree_grid(self) -> int:
        return self.shape.value_heads * self.slices

    @property
    def tree_block(self) -> int:
        return self.width // 8 * WARP

    @property
    def tree_shared(self) -> int:
        """Bytes of dynamic shared memory, term by term as gdn_tree.cu lays it out."""
        block = 1 if self.nodes == 1 else BLOCK_NODES
        solved = -(-self.nodes // block) * block
        triangle = (solved // block) * (solved // block + 1) // 2 * block * block
        queries_keys = 2 * (self.nodes + self.nodes % 2) * DIM * 4
        staged = self.batch * (DIM + self.width) * 4
        columns = 2 * solved * self.width * 4
        factors = 2 * max(triangle, self.nodes * self.batch) * 4
        return queries_keys + staged + columns + factors + solved * (8 + 8 + 4 + 4) + (2 * self.batch + 1) * 4

    def flush_grid(self, layers: int) -> tuple[int, int]:
        """Of gdn_flush, which commits all layers at once; its blocks are gdn_tree's."""
        return self.tree_grid + self.shape.chunks, layers


@dataclass(frozen=True, slots=True)
class ScanLaunch:
    """The launches of kernels/gdn_chunks.cu, which read prompts a chunk of PASS_ROWS rows at a time."""

    shape: DeltaShape
    stages: int

    @staticmethod
    def of(shape: DeltaShape, shared_limit: int) -> ScanLaunch | None:
        """With two chunks on their way where shared memory has room for them; None where not even one has."""
        launches = [ScanLaunch(shape, stages) for stages in (2, 1)]
        return next((one for one in launches if max(one.scan_shared, one.solve_shared) <= shared_limit), None)

    @property
    def defines(self) -> dict[str, int]:
        return {"K_HEADS": self.shape.key_heads, "V_HEADS": self.shape.value_heads, "STAGES": self.stages}

    def rows_grid(self, chunks: int) -> tuple[int, int]:
        return self.shape.chunks, chunks

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
