"""NVIDIA's management library: its queries use no memory of a card, and no quota of a vGPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dflash_core.errors import DeviceError


@dataclass(frozen=True, slots=True)
class CardMemory:
    """Bytes of one card, for all processes together."""

    name: str
    total: int
    free: int


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
            found.append(CardMemory(str(self._ask(api.nvmlDeviceGetName, card)), int(memory.total), int(memory.free)))
        return tuple(found)

    def used_by_others(self, bus: str) -> int:
        """Bytes that other processes use on the card at this PCI address, as far as the driver reports them.

        Cards have another order here than in CUDA, which may also hide some: only the address is the same.
        """
        card = self._ask(self._api.nvmlDeviceGetHandleByPciBusId, bus)
        running = self._ask(self._api.nvmlDeviceGetComputeRunningProcesses, card)
        return sum(int(process.usedGpuMemory or 0) for process in running if process.pid != os.getpid())

    def _ask(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except self._api.NVMLError as error:
            raise DeviceError(str(error)) from None


def driver_version() -> str:
    """The driver's version, such as 580.95.05; "unknown" where the library does not report it."""
    try:
        with Management() as management:
            return management.driver
    except DeviceError:
        return "unknown"


def used_by_others(bus: str) -> int:
    """Bytes that other processes use on the card at this PCI address; 0 where the library does not report them."""
    try:
        with Management() as management:
            return management.used_by_others(bus)
    except DeviceError:  # no library, no permission, or a container that hides processes
        return 0
