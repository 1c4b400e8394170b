"""Times the matrix products of a 27B step, one by one and in sequence, on this card.

    python -m tools.bench.kernels [--json] [--out FILE]

Shapes and types are those of the synthetic 27B target. Weights are random bytes, as many copies as fit into a few
gigabytes, so that none is in the L2 when it is read. Launches are recorded in a graph as in a step; a figure is the
median over replays, of one launch. Read bandwidth is that of a kernel which does nothing but read.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from dflash_core.arch.kinds import Attention
from dflash_core.backends.cuda import plan
from dflash_core.backends.cuda.activations import DEFAULT, Activations
from dflash_core.backends.cuda.device import CudaDevice
from dflash_core.backends.cuda.launch import Launch, Run
from dflash_core.backends.cuda.layers.base import acts_pieces
from dflash_core.backends.cuda.projection import Acts, Matrix, Projection
from dflash_core.backends.cuda.repack import blocks_of, groups_of, packed_bytes, tile_type
from dflash_core.backends.cuda.runtime import seconds_of
from dflash_core.backends.cuda.state import WIDTHS
from dflash_core.backends.cuda.target import open_device
from dflash_core.bench.synthetic_models import SIZE_27B, TARGET_27B, target_types
from dflash_core.errors import OutOfMemoryError
from dflash_core.lab.schedule import interleave
from dflash_core.progress import Progress
from dflash_tui.terminal.output import Notes
from tools.bench.tool import report, run_tool

ARENA = 3 << 30
MAX_COPIES = 24
REPLAYS = 9
CHAIN_ROUNDS = 3
MAX_SPLIT_K = 16

FULL = (("attn_q", "attn_k", "attn_v"), ("attn_output",))
DELTA = (("attn_qkv", "attn_gate", "ssm_alpha", "ssm_beta"), ("ssm_out",))
FEED_FORWARD = (("ffn_gate", "ffn_up"), ("ffn_down",))


def acts_for(columns: int, device: torch.device) -> Acts:
    """Activations of the widest pass of up to `columns` columns; zeros, so that padding rows hold finite numbers."""
    return Acts(*(torch.zeros(size, dtype=dtype, device=device) for size, dtype in acts_pieces(columns, columns)))


@dataclass(frozen=True, slots=True)
class Product:
    """Matrices (type, rows) of one launch, which share their `columns` inputs. `split_k` fixes the parts of K."""

    name: str
    matrices: tuple[tuple[str, int], ...]
    columns: int
    split_k: int | None = None

    @property
    def nbytes(self) -> int:
        return sum(packed_bytes(kind, rows, self.columns) for kind, rows in self.matrices)

    @property
    def planned(self) -> plan.Product:
        """As plans know it."""
        shapes = tuple(plan.Shape(*matrix) for matrix in self.matrices)
        return plan.Product(shapes, self.columns, DEFAULT.of(self.name), self.split_k)

    @property
    def types(self) -> str:
        return "+".join(dict.fromkeys(kind for kind, _ in self.matrices))


@dataclass(frozen=True, slots=True)
class Step:
    """One product at one width: microseconds of a launch, bytes of weights per second of it."""

    product: Product
    split_k: int
    width: int
    microseconds: float
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class Ladder:
    """What was measured. `bandwidth`: bytes per second that a kernel reads which does nothing else."""

    card: str
    bandwidth: float
    steps: tuple[Step, ...]


def products_27b() -> list[Product]:
    """All products of a step of the synthetic 27B target, in order, its head last."""
    shapes, types = TARGET_27B.tensors(), target_types(TARGET_27B, SIZE_27B)
    found = []
    for index, layer in enumerate(TARGET_27B.layers):
        for names in (*(FULL if isinstance(layer.mixer, Attention) else DELTA), *FEED_FORWARD):
            tensors = [f"blk.{index}.{name}.weight" for name in names]
            matrices = tuple((types[t], shapes[t][0]) for t in tensors)
            found.append(Product(" ".join(names), matrices, shapes[tensors[0]][1]))
    rows, columns = shapes["output.weight"]
    return [*found, Product("output", ((types["output.weight"], rows),), columns, 1)]


class Bench:
    """Buffers that every launch uses, and memory full of random weights.

    Raises OutOfMemoryError where the card has not `arena` bytes and another gigabyte to spare.
    """

    def __init__(
        self, device: CudaDevice, arena: int, products: Sequence[Product], activations: Activations = DEFAULT
    ) -> None:
        self.device, self.activations = device, activations
        free, _ = device.runtime.memory()
        if free < arena + (1 << 30):
            raise OutOfMemoryError(
                f"bench kernels needs {(arena >> 30) + 1} GiB of the card, {free / 2**30:.1f} are free; free some"
            )
        cuda = device.torch_device
        with device.stream():
            self.weights = torch.empty(arena, dtype=torch.uint8, device=cuda)
            for at in range(0, arena, 1 << 30):
                self.weights[at : at + (1 << 30)].random_(0, 256)
            self.acts = acts_for(max(p.columns for p in products), cuda)
            rows = max(sum(16 * blocks_of(r) for _, r in p.matrices) * (p.split_k or MAX_SPLIT_K) for p in products)
            self.out = torch.empty(WIDTHS[-1] * rows, device=cuda)

    def place(self, product: Product, at: int) -> tuple[Projection, int]:
        """The product with its weights from byte `at` of the arena on, and where they end."""
        matrices = []
        for kind, rows in product.matrices:
            shape = (blocks_of(rows), groups_of(product.columns), tile_type(kind).bytes)
            end = at + packed_bytes(kind, rows, product.columns)
            matrices.append(Matrix(kind, rows, product.columns, self.weights[at:end].view(shape)))
            at = end
        return Projection(self.device, matrices, self.activations.of(product.name), split_k=product.split_k), at

    def copies(self, product: Product) -> list[Projection]:
        """The same product at as many places as there are, two at least where the arena holds them."""
        count = max(1, min(MAX_COPIES, self.weights.nbytes // product.nbytes))
        return [self.place(product, i * product.nbytes)[0] for i in range(count)]

    def launches(self, projections: Iterable[Projection], width: int) -> list[Launch]:
        return [launch for p in projections for launch in p.launches(self.acts, self.out, width)]

    def record(self, launches: Sequence[Launch], progress: Progress | None = None) -> Run:
        return self.device.record("bench kernels", self.device.bind(launches, progress))

    def seconds(self, run: Run) -> float:
        """Median time of a replay."""
        run()
        return statistics.median(seconds_of(self.device.runtime, run) for _ in range(REPLAYS))

    def bandwidth(self) -> float:
        """Bytes per second that the card reads."""
        grid = 8 * self.device.card.multiprocessors
        with self.device.stream():
            out = torch.empty(grid * 256, dtype=torch.int32, device=self.device.torch_device)
        words = np.uint64(self.weights.nbytes // 16)
        launch = Launch("stream.cu", "stream", {}, grid, 256, [self.weights, words, out])
        return self.weights.nbytes / self.seconds(self.record([launch]))


def ladder(device: CudaDevice, progress: Progress | None = None, activations: Activations = DEFAULT) -> Ladder:
    """Every distinct product of the 27B target at every width."""
    products = list(dict.fromkeys(products_27b()))
    bench = Bench(device, ARENA, products, activations)
    everything = [launch for p in products for w in WIDTHS for launch in bench.launches([bench.place(p, 0)[0]], w)]
    device.bind(everything, progress)
    steps = []
    for index, product in enumerate(products):
        copies = bench.copies(product)
        for width in WIDTHS:
            each = bench.seconds(bench.record(bench.launches(copies, width))) / len(copies)
            steps.append(Step(product, copies[0].split_k, width, each * 1e6, product.nbytes / each))
        if progress:
            progress("measuring matrix products", (index + 1) / len(products))
    return Ladder(device.runtime.card.name, bench.bandwidth(), tuple(steps))


def chain(device: CudaDevice, progress: Progress | None = None, activations: Activations = DEFAULT) -> dict[int, float]:
    """Seconds for all products of a step one after the other, each with weights of its own, by width: medians."""
    products = products_27b()
    bench = Bench(device, sum(p.nbytes for p in products), products, activations)
    projections, at = [], 0
    for product in products:
        projection, at = bench.place(product, at)
        projections.append(projection)
    runs = [bench.record(bench.launches(projections, width), progress) for width in WIDTHS]
    found: list[list[float]] = [[] for _ in runs]
    for slot in interleave(1, len(runs), CHAIN_ROUNDS):
        found[slot.prompt].append(bench.seconds(runs[slot.prompt]))
    return {width: statistics.median(seconds) for width, seconds in zip(WIDTHS, found)}


def table(found: Ladder) -> list[str]:
    """Lines of a table: microseconds, terabytes per second and the share of what the card reads."""
    widths = list(dict.fromkeys(step.width for step in found.steps))
    lines = [f"{found.card}, reads {found.bandwidth / 1e12:.2f} TB/s; us per launch (TB/s, share of it)"]
    lines.append(f"{'product':40} {'types':16} {'S':>2}" + "".join(f"{f'N={w}':>18}" for w in widths))
    for at in range(0, len(found.steps), len(widths)):
        row = found.steps[at : at + len(widths)]
        line = f"{row[0].product.name:40} {row[0].product.types:16} {row[0].split_k:2}"
        for step in row:
            rate = step.bytes_per_second
            line += f"{step.microseconds:7.1f} ({rate / 1e12:.2f} {rate / found.bandwidth:4.0%})"
        lines.append(line)
    return lines


def chain_table(found: dict[int, float]) -> list[str]:
    """Lines of a table: milliseconds by width."""
    products, first = products_27b(), next(iter(found.values()))
    size = sum(p.nbytes for p in products)
    lines = [f"{len(products)} products of a step, {size / 1e9:.1f} GB"]
    for width, seconds in found.items():
        rate, ratio = size / seconds / 1e12, seconds / first
        lines.append(f"  N={width:<3} {seconds * 1e3:7.3f} ms {rate:5.2f} TB/s {ratio:5.2f} of N={min(found)}")
    return lines


def main() -> None:
    """Measure and print. Raises DFlashError."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write everything measured as JSON")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    args, notes, device = parser.parse_args(), Notes(), open_device(0)
    found, together = ladder(device, notes.progress), chain(device, notes.progress)
    notes.end_line()
    text = "\n".join([*table(found), "", *chain_table(together)])
    report({**asdict(found), "chain_seconds": together}, text, args, notes)


if __name__ == "__main__":
    run_tool(main)
