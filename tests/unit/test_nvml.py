"""NVIDIA's management library, used in one place: opened once, closed again, and every failure is one line."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from dflash_core import nvml
from dflash_core.errors import DeviceError
from dflash_core.nvml import CardMemory, Management, driver_version

GIB = 1 << 30


class FakeLibrary:
    """Two cards, of which the second is in use, and a count of who has opened it."""

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        self.opened = self.inits = 0
        here, other, hidden = ((pid, used) for pid, used in ((os.getpid(), GIB), (1, 3 * GIB), (2, None)))
        self.drawing: dict[bytes, list[SimpleNamespace]] = {}
        self.processes = {
            b"0000:1a:00.0": [],
            b"0000:65:00.0": [SimpleNamespace(pid=p, usedGpuMemory=u) for p, u in (here, other, hidden)],
        }

    def fail(self, *_: Any) -> None:
        """Replaces any of its functions to make it fail."""
        raise self.NVMLError("Unknown Error")

    def nvmlInit(self) -> None:  # noqa: N802
        self.opened += 1
        self.inits += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.opened -= 1

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.95.05"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:  # noqa: N802
        return 13010

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> bytes:  # noqa: N802
        return list(self.processes)[index]

    def nvmlDeviceGetHandleByPciBusId(self, bus: str) -> bytes:  # noqa: N802
        if bus.encode() not in self.processes:
            raise self.NVMLError("Not Found")
        return bus.encode()

    def nvmlDeviceGetName(self, card: bytes) -> str:  # noqa: N802
        return f"A card at {card.decode()}"

    def nvmlDeviceGetMemoryInfo(self, card: bytes) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(total=80 * GIB, free=70 * GIB)

    def nvmlDeviceGetComputeRunningProcesses(self, card: bytes) -> list[SimpleNamespace]:  # noqa: N802
        return self.processes[card]

    def nvmlDeviceGetGraphicsRunningProcesses(self, card: bytes) -> list[SimpleNamespace]:  # noqa: N802
        return self.drawing.get(card, [])


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> FakeLibrary:
    fake = FakeLibrary()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def test_what_it_knows(library: FakeLibrary) -> None:
    with Management() as management:
        assert library.opened == 1
        assert (management.driver, management.cuda) == ("580.95.05", (13, 1))
        held = nvml.listed_holders(management.holders("0000:65:00.0"))
        assert "(1) 3.0 GiB, " in held
        assert management.cards() == (
            CardMemory("A card at 0000:1a:00.0", 80 * GIB, 70 * GIB),
            CardMemory("A card at 0000:65:00.0", 80 * GIB, 70 * GIB, held),
        )
    assert library.opened == 0
    management.close()
    assert library.opened == 0


def test_processes_are_named_the_largest_first(library: FakeLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    card = b"0000:65:00.0"
    mine = os.getpid()
    library.processes[card] = [
        SimpleNamespace(pid=pid, usedGpuMemory=used)
        for pid, used in ((mine, GIB), (70, 3 * GIB), (71, None), (72, GIB))
    ]
    library.drawing[card] = [
        SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in ((73, GIB // 2), (70, 2 * GIB), (74, GIB // 4))
    ]
    monkeypatch.setattr(nvml, "process_name", lambda pid: f"p{pid}")
    with Management() as management:
        found = management.holders(card.decode())
    assert [(one.pid, one.bytes) for one in found] == [
        (70, 3 * GIB), (72, GIB), (73, GIB // 2), (74, GIB // 4), (71, None)
    ]  # fmt: skip
    assert nvml.holders(card.decode()) == "p70 (70) 3.0 GiB, p72 (72) 1.0 GiB, p73 (73) 512.0 MiB and 2 more"
    assert str(found[-1]) == "p71 (71)"
    assert nvml.holders("nowhere") == ""
    assert nvml.process_name(mine)


def test_other_processes_are_those_of_the_card_at_this_address(library: FakeLibrary) -> None:
    """Not of the first card: CUDA may hide that one, or count cards in another order."""
    with Management() as management:
        assert management.used_by_others("0000:65:00.0") == 3 * GIB
        assert management.used_by_others("0000:1a:00.0") == 0
        with pytest.raises(DeviceError, match=r"^Not Found$"):
            management.used_by_others("")


def test_it_is_closed_behind_an_error(library: FakeLibrary) -> None:
    with pytest.raises(ZeroDivisionError), Management():
        raise ZeroDivisionError
    assert library.opened == 0


@pytest.mark.parametrize("broken", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo"])
def test_what_fails_is_one_line(library: FakeLibrary, broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, broken, library.fail)
    with pytest.raises(DeviceError, match=r"^Unknown Error$"), Management() as management:
        management.cards()
    assert library.opened == 0


def test_a_library_that_does_not_close_is_let_go(library: FakeLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "nvmlShutdown", library.fail)
    with Management() as management:
        assert management.driver


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(DeviceError, match="nvidia-ml-py"):
        Management()


def test_a_card_s_breakdown_opens_it_once(library: FakeLibrary) -> None:
    pytest.importorskip("cuda.bindings")
    from dflash_core.backends.cuda.machine import CudaMachine

    card = SimpleNamespace(name="A card", bus="0000:65:00.0")
    runtime = SimpleNamespace(card=card, memory=lambda: (GIB, 80 * GIB))
    device: Any = SimpleNamespace(runtime=runtime, stream=nullcontext, card=SimpleNamespace(multiprocessors=132))
    machine = CudaMachine(device, footprint=None)  # type: ignore[arg-type]
    assert machine.breakdown(()).measured == (80 - 1 - 3) * GIB
    assert machine.other_processes() == 3 * GIB
    assert library.inits == library.opened == 1
    card.bus = "nowhere"
    assert machine.other_processes() == 0
    del machine
    assert library.opened == 0


def test_who_asks_it(library: FakeLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    """`doctor`, a benchmark and the list of models; each closes it, and has its own message for no library."""
    from dflash_tui.application.hub import fitting
    from dflash_tui.cli import probe

    facts = probe.management()
    assert (facts["driver"], facts["cuda"], len(facts["cards"])) == ("580.95.05", (13, 1), 2)
    assert facts["cards"][0] == {"name": "A card at 0000:1a:00.0", "total": 80 * GIB, "free": 70 * GIB, "holders": ""}
    assert driver_version() == "580.95.05"
    assert "A card at 0000:65:00.0: 70.0 GiB of 80.0 GiB free." in fitting.machine()
    assert (library.inits, library.opened) == (3, 0)
    monkeypatch.setattr(library, "nvmlInit", library.fail)
    assert driver_version() == "unknown"
    assert "A card" not in fitting.machine()
    with pytest.raises(DeviceError, match=r"^Unknown Error$"):
        probe.management()
