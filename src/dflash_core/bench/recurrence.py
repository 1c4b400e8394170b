"""The recurrence of the gated delta net alone, on this card: microseconds of a layer by width, tree and cut.

The states are those of a whole 27B, layer by layer, so that each comes from memory as in a step. Launches are recorded
in a graph; a figure is the median over replays, of one layer. All cuts give the same bits, which is checked.

    python -m dflash_core.bench.recurrence [--widths 8,24,64] [--accepted 6] [CUT ...]

A cut is `auto`, what steps take, or `COLUMNSxWARPS` such as `3x4`: columns of a lane, warps of a block.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dflash_core.arch.kinds import DeltaNet
from dflash_core.backends.cuda.device import CudaDevice
from dflash_core.backends.cuda.device_state import DeviceState
from dflash_core.backends.cuda.launch import Argument, Device, Launch
from dflash_core.backends.cuda.layers.delta_shapes import (
    DIM,
    ORDER_INTS,
    DeltaLaunch,
    DeltaShape,
    first_pass_levels,
)
from dflash_core.backends.cuda.runtime import seconds_of
from dflash_core.backends.cuda.state import MAX_NODES, PASS_ROWS
from dflash_core.bench.synthetic_models import TARGET_27B
from dflash_core.errors import KernelError, UnsupportedError

WIDTHS = (8, 16, 24, 40, 64)  # not 1: the root of plain decoding is gdn_alone's
REPLAYS = 21
SEED = 1


@dataclass(frozen=True, slots=True)
class Cut:
    """How states are cut into blocks; 0 columns: as steps do."""

    columns: int = 0
    warps: int = 0

    @staticmethod
    def of(text: str) -> Cut:
        """Raises ValueError for what is neither `auto` nor two numbers."""
        return Cut() if text == "auto" else Cut(*(int(part) for part in text.split("x", 1)))

    def __str__(self) -> str:
        return f"{self.columns}x{self.warps}" if self.columns else "auto"

    def launch(self, shape: DeltaShape, nodes: int, device: Device) -> DeltaLaunch:
        """Raises UnsupportedError where a block has too little shared memory for it."""
        if not self.columns:
            return DeltaLaunch.of(shape, nodes, device.card)
        launch = DeltaLaunch(shape, nodes, self.columns, self.warps)
        if launch.shared > device.card.shared_bytes:
            raise UnsupportedError(f"the cut {self} needs {launch.shared:,} bytes of shared memory; try fewer warps")
        return launch.with_levels(device.card)


def trees(nodes: int) -> dict[str, Sequence[int]]:
    """Parents by the name of a tree: nothing but inner nodes, and as many leaves."""
    return {"chain": range(-1, nodes - 1), "binary": [(node - 1) // 2 if node else -1 for node in range(nodes)]}


class Recurrences:
    """The memory of `layers` layers, full of random numbers, and launches over it."""

    def __init__(self, device: Device, shape: DeltaShape, layers: int) -> None:
        self.device, self.shape, self.layers = device, shape, layers
        self.state = DeviceState(device.torch_device)
        random = torch.Generator(device=device.torch_device).manual_seed(SEED)

        def numbers(*sizes: int) -> torch.Tensor:
            return torch.randn(sizes, generator=random, device=device.torch_device)

        sizes = shape.layer_shapes(PASS_ROWS)
        self.s, self.u = numbers(layers, *sizes["s"]) / DIM, numbers(layers, *sizes["u"])
        self.k = torch.nn.functional.normalize(numbers(layers, *sizes["k"]), dim=-1)
        self.decay = torch.sigmoid(numbers(layers, *sizes["decay"]))
        self.levels = torch.zeros((first_pass_levels(PASS_ROWS), *sizes["s"]), device=device.torch_device)
        rows = shape.pass_shapes()
        self.q, self.v, self.out = (numbers(*rows[name]) for name in ("q", "v", "out"))
        self.beta = torch.sigmoid(numbers(*rows["beta"]))
        self.order = torch.zeros(ORDER_INTS, dtype=torch.int32, device=device.torch_device)

    def plant(self, parents: Sequence[int], accepted: int) -> None:
        """The tree that is run, after a commit of `accepted` nodes."""
        self.state.plant([0] * len(parents), parents)
        self.state.host["pending"], self.state.host["pending_path"][:accepted] = accepted, range(accepted)
        self.state.push()

    def launches(self, launch: DeltaLaunch) -> Iterator[Launch]:
        """The order once, then every layer."""
        zero, nodes, capacity = np.int32(0), np.int32(launch.nodes), np.int32(PASS_ROWS)
        order: list[Argument] = [self.state.pointer, zero, nodes, self.order]
        yield Launch("gdn_order.cu", "gdn_order", self.shape.defines, 1, MAX_NODES, order)
        for layer in range(self.layers):
            yield Launch(
                "gdn_recurrence.cu", "gdn_recurrence", launch.defines, launch.grid, launch.block,
                [self.state.pointer, zero, self.order, self.s[layer], self.k[layer], self.u[layer], self.decay[layer],
                 self.q, self.v, self.beta, self.out, self.levels, capacity],
                launch.shared, per_sm=1,
            )  # fmt: skip

    def check(self, launches: Sequence[DeltaLaunch]) -> None:
        """Raises KernelError where they differ in a bit of outputs or states."""
        kept, found = (self.s.clone(), self.u.clone()), list[tuple[torch.Tensor, torch.Tensor]]()
        for launch in launches:
            self.s.copy_(kept[0])
            self.u.copy_(kept[1])
            self.device.bind(list(self.launches(launch)))()
            self.device.synchronize()
            found.append((self.out[: launch.nodes].clone(), self.s.clone()))
        for out, s in found[1:]:
            if not (torch.equal(out, found[0][0]) and torch.equal(s, found[0][1])):
                raise KernelError("two cuts of the delta net differ in bits, expected the same")


def compare(device: CudaDevice, cuts: Sequence[Cut], widths: Sequence[int], accepted: int) -> Iterator[str]:
    """Lines of a table: microseconds of a layer."""
    mixers = [layer.mixer for layer in TARGET_27B.layers if isinstance(layer.mixer, DeltaNet)]
    spec = mixers[0]
    shape = DeltaShape.of(spec.key_heads, spec.value_heads, spec.key_dim, spec.value_dim, spec.conv_kernel)
    with device.stream():
        bench = Recurrences(device, shape, len(mixers))
        for width in widths:
            launches = {str(cut): cut.launch(shape, width, device) for cut in cuts}
            for name, parents in trees(width).items():
                bench.plant(parents, min(accepted, PASS_ROWS))
                bench.check(list(launches.values()))
                for cut, launch in launches.items():
                    run = device.record("recurrence", device.bind(list(bench.launches(launch))))
                    run()
                    us = statistics.median(seconds_of(device.runtime, run) for _ in range(REPLAYS)) * 1e6 / bench.layers
                    taken = f"{launch.columns}x{launch.warps}, {launch.grid} blocks, {launch.shared:,} bytes"
                    yield f"N={width:<3} {name:7} {cut:5} {us:7.2f} us   ({taken})"


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
    main()
