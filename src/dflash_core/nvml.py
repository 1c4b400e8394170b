"""NVIDIA's management library: its queries use no memory of a card, and no quota of a vGPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dflash_core.errors import DeviceError
from dflash_core.memory import gib

T = TypeVar("T")
NAMED = 3  # processes that a line names


@dataclass(frozen=True, slots=True)
class CardMemory:
    """Bytes of one card, for all processes together; `holders`: who uses it, in one line."""

    name: str
    total: int
    free: int
    holders: str = ""


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that uses a card, and its bytes there; None where the driver does not say (WSL, some containers)."""

    pid: int
    name: str
    bytes: int | None

    def __str__(self) -> str:
        amount = f" {gib(self.bytes)}" if self.bytes is not None else ""
        return f"{self.name} ({self.pid}){amount}"


def listed_holders(holders: Sequence[Holder]) -> str:
    """The largest of them in one line."""
    more = f" and {len(holders) - NAMED} more" if len(holders) > NAMED else ""
    return ", ".join(map(str, holders[:NAMED])) + more


class Management:
    """The library, open until `close`, or until the end of a `with`. All but that raises DeviceError where it fails."""

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError:
            raise DeviceError("no nvidia-ml-py; install the project again, its CUDA packages are pinned") from None
        self._api: Any = pynvml
        self._open = False
        self._ask(pynvml.nvmlInit)
        self._open = True

    def close(self) -> None:
        """Shut the library down; a second call does nothing. Never raises."""
        if self._open:
            self._open = False
            with suppress(DeviceError):
                self._ask(self._api.nvmlShutdown)

    def __enter__(self) -> Management:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def driver(self) -> str:
        """The driver's version, such as 580.95.05."""
        return str(self._ask(self._api.nvmlSystemGetDriverVersion))

    @property
    def cuda(self) -> tuple[int, int]:
        """The CUDA version that the driver is for."""
        supports = int(self._ask(self._api.nvmlSystemGetCudaDriverVersion_v2))
        return supports // 1000, supports % 1000 // 10

    def cards(self) -> tuple[CardMemory, ...]:
        """Every card of this machine, including those that CUDA_VISIBLE_DEVICES hides."""
        api, found = self._api, []
        for index in range(self._ask(api.nvmlDeviceGetCount)):
            card = self._ask(api.nvmlDeviceGetHandleByIndex, index)
            memory = self._ask(api.nvmlDeviceGetMemoryInfo, card)
            try:
                holders = listed_holders(self._holders(card))
            except DeviceError:  # a container that hides processes
                holders = ""
            name = str(self._ask(api.nvmlDeviceGetName, card))
            found.append(CardMemory(name, int(memory.total), int(memory.free), holders))
        return tuple(found)

    def used_by_others(self, bus: str) -> int:
        """Bytes that other processes use on the card at this PCI address, as far as the driver reports them.

        Cards have another order here than in CUDA, which may also hide some: only the address is the same.
        """
        running = self._ask(self._api.nvmlDeviceGetComputeRunningProcesses, self._card(bus))
        return sum(int(process.usedGpuMemory or 0) for process in running if process.pid != os.getpid())

    def holders(self, bus: str) -> tuple[Holder, ...]:
        """Other processes on the card at this PCI address, programs that draw on it too; the largest first."""
        return self._holders(self._card(bus))

    def _card(self, bus: str) -> Any:
        return self._ask(self._api.nvmlDeviceGetHandleByPciBusId, bus)

    def _holders(self, card: Any) -> tuple[Holder, ...]:
        found = dict[int, int | None]()
        for listed in (self._api.nvmlDeviceGetComputeRunningProcesses, self._api.nvmlDeviceGetGraphicsRunningProcesses):
            for process in self._ask(listed, card):  # a process that does both is in both lists
                if process.pid != os.getpid():
                    used = process.usedGpuMemory
                    found[process.pid] = max(found.get(process.pid) or 0, int(used)) if used is not None else None
        holders = (Holder(pid, process_name(pid), used) for pid, used in found.items())
        return tuple(sorted(holders, key=lambda one: (-(one.bytes or 0), one.pid)))

    def _ask(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except self._api.NVMLError as error:
            raise DeviceError(str(error)) from None


def driver_version() -> str:
    """The driver's version, such as 580.95.05; "unknown" where the library does not report it."""
    return _asked(lambda management: management.driver, "unknown")


def used_by_others(bus: str) -> int:
    """Bytes that other processes use on the card at this PCI address; 0 where the library does not report them."""
    return _asked(lambda management: management.used_by_others(bus), 0)


def holders(bus: str) -> str:
    """Other processes on the card at this PCI address in one line; empty where there are none or it is not known."""
    return _asked(lambda management: listed_holders(management.holders(bus)), "")


def _asked(question: Callable[[Management], T], otherwise: T) -> T:
    """The answer of the library; `otherwise` without it, without permission, or in a container that hides processes."""
    try:
        with Management() as management:
            return question(management)
    except DeviceError:
        return otherwise


def process_name(pid: int) -> str:
    """The name of a process; "a process" where it has none that this user may see."""
    try:
        name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        name = ""
    return "".join(filter(str.isprintable, name)) or "a process"
