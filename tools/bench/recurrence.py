"""A layer of the gated delta net between its two products, on this card: microseconds by width, tree and cut.

The states are those of a whole 27B, layer by layer, so that each comes from memory as in a step. Launches are recorded
in a graph; a figure is the median over replays, of one layer. All cuts give the same bits, which is checked.

    python -m tools.bench.recurrence [--widths 8,24,64] [--accepted 6] [CUT ...]

A cut is `auto`, what steps take, or `COLUMNSxWARPS+MAKERS` such as `3x4+8`: columns of a lane, warps of a block that
hold the state, and warps that make the rows; with 0 another kernel makes them. `3x4` takes as many makers as steps do.
"""

from __future__ import annotations

import argparse
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from dflash_core.arch.kinds import DeltaNet
from dflash_core.backends.cuda.activations import DEFAULT
from dflash_core.backends.cuda.device import CudaDevice
from dflash_core.backends.cuda.device_state import DeviceState
from dflash_core.backends.cuda.launch import Device, Launch
from dflash_core.backends.cuda.layers.base import Pass, PassBuffers, SequenceNeeds
from dflash_core.backends.cuda.layers.delta_net import DeltaNetLayers
from dflash_core.backends.cuda.layers.delta_shapes import DIM, DeltaLaunch, DeltaShape, first_pass_levels
from dflash_core.backends.cuda.products import Arena
from dflash_core.backends.cuda.projection import Matrix
from dflash_core.backends.cuda.runtime import seconds_of
from dflash_core.backends.cuda.state import PASS_ROWS
from dflash_core.backends.cuda.upload import Upload
from dflash_core.bench.synthetic_models import SIZE_27B, TARGET_27B, target_types
from dflash_core.errors import KernelError, UnsupportedError
from tools.bench.tool import run_tool

WIDTHS = (8, 16, 24, 40, 64)  # not 1: the root of plain decoding is gdn_single_row's
REPLAYS = 21
SEED = 1


@dataclass(frozen=True, slots=True)
class Cut:
    """How states are cut into blocks; 0 columns: as steps do. `makers`: None for those that steps take."""

    columns: int = 0
    warps: int = 0
    makers: int | None = None

    @staticmethod
    def of(text: str) -> Cut:
        """Raises ValueError for what is neither `auto` nor two numbers or three."""
        if text == "auto":
            return Cut()
        found = re.fullmatch(r"(\d+)x(\d+)(?:\+(\d+))?", text)
        if found is None:
            raise ValueError(f"cut {text!r}, expected `auto`, COLUMNSxWARPS or COLUMNSxWARPS+MAKERS")
        columns, warps, makers = found.groups()
        return Cut(int(columns), int(warps), int(makers) if makers else None)

    def __str__(self) -> str:
        if not self.columns:
            return "auto"
        return f"{self.columns}x{self.warps}" + (f"+{self.makers}" if self.makers is not None else "")

    def launch(self, shape: DeltaShape, nodes: int, device: Device) -> DeltaLaunch:
        """Raises UnsupportedError where a block has too little shared memory for it."""
        if not self.columns:
            return DeltaLaunch.of(shape, nodes, device.card)
        launch = DeltaLaunch(shape, nodes, self.columns, self.warps)
        if launch.shared > device.card.shared_bytes:
            raise UnsupportedError(f"the cut {self} needs {launch.shared:,} bytes of shared memory; try fewer warps")
        launch = launch.complete(device.card)
        return launch if self.makers is None else replace(launch, makers=self.makers)


def trees(nodes: int) -> dict[str, Sequence[int]]:
    """Parents by the name of a tree: nothing but inner nodes, and as many leaves."""
    return {"chain": range(-1, nodes - 1), "binary": [(node - 1) // 2 if node else -1 for node in range(nodes)]}


class RandomUpload(Upload):
    """An upload for a layer's shapes and types: random vectors, and matrices without memory."""

    def __init__(self, spec: DeltaNet, hidden: int, types: Mapping[str, str], random: Random) -> None:
        self.shapes, self.types, self.random = spec.tensors(hidden), types, random

    def matrix(self, name: str) -> Matrix:
        rows, columns = self.shapes[name]
        return Matrix(self.types[name], rows, columns, torch.empty(0, dtype=torch.uint8))

    def vector(self, name: str) -> torch.Tensor:
        numbers = self.random.numbers(*self.shapes[name])
        return -numbers.abs() if name == "ssm_a" else numbers


class Random:
    """Random numbers on a device."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.generator = device, torch.Generator(device=device).manual_seed(SEED)

    def numbers(self, *sizes: int) -> torch.Tensor:
        return torch.randn(sizes, generator=self.generator, device=self.device)


class CutLayers(DeltaNetLayers):
    """Layers that are cut as `chosen` says."""

    chosen: DeltaLaunch

    def launch(self, rows: int, later: bool = False) -> DeltaLaunch:
        return self.chosen

    def far_levels(self, capacity: int) -> int:
        return first_pass_levels(PASS_ROWS)


class Recurrences:
    """`layers` layers in a model of width `hidden`, full of random numbers, and launches over them. `types`: of the
    matrices by name, which decide how products are split."""

    def __init__(self, device: Device, spec: DeltaNet, hidden: int, types: Mapping[str, str], layers: int) -> None:
        self.device = device
        self.state = DeviceState(device.torch_device)
        random = Random(device.torch_device)
        self.layers = CutLayers(device, spec, DEFAULT)
        for _ in range(layers):
            self.layers.load(RandomUpload(spec, hidden, types, random), "")

        def arena(wanted: Sequence[tuple[tuple[int, ...], torch.dtype]]) -> Arena:
            return Arena.of(Arena.need(wanted), device.torch_device)

        passes, rows = self.layers.pass_buffers(0), self.layers.row_buffers(PASS_ROWS)
        self.memory = memory = self.layers.memory(SequenceNeeds(0, PASS_ROWS, arena(passes), arena(rows)))
        inputs, out = self.layers.projections(0)
        lasting, partials = PassBuffers.lasting(hidden, [inputs], [out]), PassBuffers.partials([inputs], [out])
        self.buffers = PassBuffers(hidden, [inputs], [out], arena(lasting), arena(partials))
        for tensor in (memory.s, memory.conv, memory.inputs, memory.u, memory.k, memory.decay, self.buffers.wide):
            tensor.copy_(random.numbers(*tensor.shape))
        memory.s /= DIM
        memory.k.copy_(torch.nn.functional.normalize(memory.k, dim=-1))
        memory.decay.sigmoid_()

    def stage_tree(self, parents: Sequence[int], accepted: int) -> None:
        """The tree that is run, after a commit of `accepted` nodes."""
        self.state.stage_tree([0] * len(parents), parents)
        self.state.host["pending"], self.state.host["pending_path"][:accepted] = accepted, range(accepted)
        self.state.push()

    def launches(self, launch: DeltaLaunch) -> Iterator[Launch]:
        """The order once, then every layer."""
        self.layers.chosen = launch
        scope = Pass(self.state, self.buffers, launch.nodes, 0, self.state.at("n"), 1e-6)
        branches = [self.memory.layer(place) for place in range(len(self.layers.weights))]
        yield branches[0].order(scope)
        for branch in branches:
            yield from branch.mix(scope)

    def check(self, launches: Sequence[DeltaLaunch]) -> None:
        """Raises KernelError where they differ in a bit of what they leave."""
        memory = self.memory
        written = (memory.s, memory.u, memory.conv, memory.inputs, memory.k, memory.decay)
        kept = [tensor.clone() for tensor in written]
        found = list[list[torch.Tensor]]()
        for launch in launches:
            for tensor, before in zip(written, kept):
                tensor.copy_(before)
            self.device.bind(list(self.launches(launch)))()
            self.device.synchronize()
            found.append([memory.out[: launch.nodes].clone(), *(tensor.clone() for tensor in written)])
        for other in found[1:]:
            if not all(torch.equal(a, b) for a, b in zip(other, found[0], strict=True)):
                raise KernelError("two cuts of the delta net differ in bits, expected the same")


def compare(device: CudaDevice, cuts: Sequence[Cut], widths: Sequence[int], accepted: int) -> Iterator[str]:
    """Lines of a table: microseconds of a layer."""
    mixers = [(at, layer.mixer) for at, layer in enumerate(TARGET_27B.layers) if isinstance(layer.mixer, DeltaNet)]
    first, spec = mixers[0]
    prefix = f"blk.{first}."
    types = {name.removeprefix(prefix): kind for name, kind in target_types(TARGET_27B, SIZE_27B).items()}
    with device.stream():
        bench = Recurrences(device, spec, TARGET_27B.embedding_length, types, len(mixers))
        shape = bench.layers.shape
        for width in widths:
            launches = {str(cut): cut.launch(shape, width, device) for cut in cuts}
            for name, parents in trees(width).items():
                bench.stage_tree(parents, min(accepted, PASS_ROWS))
                bench.check(list(launches.values()))
                for cut, launch in launches.items():
                    run = device.record("recurrence", device.bind(list(bench.launches(launch))))
                    run()
                    us = statistics.median(seconds_of(device.runtime, run) for _ in range(REPLAYS)) * 1e6 / len(mixers)
                    taken = f"{launch.columns}x{launch.warps}+{launch.makers}"
                    taken = f"{taken}, {launch.grid} blocks, {launch.shared:,} bytes"
                    yield f"N={width:<3} {name:7} {cut:7} {us:7.2f} us   ({taken})"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--widths", default=",".join(map(str, WIDTHS)), help="rows of a pass")
    parser.add_argument("--accepted", type=int, default=1, help="nodes that each pass commits first")
    parser.add_argument("cuts", nargs="*", type=Cut.of, default=[Cut()], metavar="CUT")
    options = parser.parse_args()
    widths = [int(width) for width in options.widths.split(",")]
    for line in compare(CudaDevice(), options.cuts, widths, options.accepted):
        print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    run_tool(main)
