"""The benchmark of the recurrence launches what a step launches, and notices divisions of the states with other
results."""

from __future__ import annotations

import pytest
from tools.bench.recurrence import Cut, Recurrences, trees

from dflash_core.arch.kinds import DeltaNet
from dflash_core.backends.cuda.layers.delta_shapes import DIM, DeltaShape
from dflash_core.errors import KernelError, UnsupportedError
from support import engines
from support.emulated_device import EmulatedDevice

pytestmark = [
    pytest.mark.emulator,
    pytest.mark.skipif(engines.missing("emulated") is not None, reason=engines.missing("emulated") or ""),
]
SPEC = DeltaNet(1, 3, DIM, DIM, 4, 1e-6)
TYPES = dict.fromkeys(SPEC.tensors(256), "Q8_0")


def test_cuts_are_compared_bit_for_bit() -> None:
    device = EmulatedDevice()
    bench = Recurrences(device, SPEC, 256, TYPES, 2)
    launches = [Cut.of(text).launch(bench.layers.shape, 8, device) for text in ("auto", "3x4", "2x6+0")]
    assert len({launch.defines["COLUMNS"] * launch.defines["WARPS"] for launch in launches}) > 1
    for parents in trees(8).values():
        bench.stage_tree(parents, 3)
        before = bench.memory.s.clone()
        bench.check(launches)
        assert not bench.memory.s.equal(before), "a commit moves the states"
    clean, bench.device = bench.device, Spoiling(device, bench)
    with pytest.raises(KernelError, match="differ in bits"):
        bench.check(launches)
    bench.device = clean


class Spoiling:
    """A device whose second list of launches leaves another state."""

    def __init__(self, device: EmulatedDevice, bench: Recurrences) -> None:
        self.device, self.bench, self.bound = device, bench, 0
        self.torch_device, self.card, self.synchronize = device.torch_device, device.card, device.synchronize

    def bind(self, launches, progress=None):  # type: ignore[no-untyped-def]
        run, self.bound = self.device.bind(launches, progress), self.bound + 1
        number = self.bound

        def spoiled() -> None:
            run()
            self.bench.memory.s[0, 0, 0, 0] += number

        return spoiled


def test_a_cut_that_does_not_fit_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="try fewer warps"):
        Cut.of("4x8").launch(DeltaShape(1, 3), 64, EmulatedDevice(shared_bytes=64 << 10))
    with pytest.raises(ValueError, match="expected `auto`"):
        Cut.of("wide")
    assert [str(Cut.of(text)) for text in ("auto", "3x4", "3x4+0")] == ["auto", "3x4", "3x4+0"]
