"""Finds the CUDA driver, checks a card and opens it. Every failure of a call becomes an error of one line.

This module is imported only when a GPU is used. The driver's bindings are imported only after its library was found:
without the library, their second call never returns.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dflash_core import nvrtc
from dflash_core.errors import DeviceError, DFlashError, KernelError, OutOfMemoryError, UnsupportedError

LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
BUS_BYTES = 32  # size of the buffer for a PCI address, more than enough

# After one of these errors, every later CUDA call in the process fails too.
_LOST = frozenset(
    f"CUDA_ERROR_{name}" for name in (
        "ILLEGAL_ADDRESS", "LAUNCH_FAILED", "LAUNCH_TIMEOUT", "ASSERT", "MISALIGNED_ADDRESS", "ILLEGAL_INSTRUCTION",
        "INVALID_ADDRESS_SPACE", "INVALID_PC", "HARDWARE_STACK_ERROR", "ECC_UNCORRECTABLE", "NVLINK_UNCORRECTABLE",
        "CONTEXT_IS_DESTROYED", "CONTAINED", "UNKNOWN",
    )
)  # fmt: skip
_WRONG_BINARY = frozenset(
    f"CUDA_ERROR_{name}"
    for name in ("NO_BINARY_FOR_GPU", "INVALID_IMAGE", "UNSUPPORTED_PTX_VERSION", "CALL_REQUIRES_NEWER_DRIVER")
)


@dataclass(frozen=True, slots=True)
class CardFacts:
    """What the program needs to know about a GPU. Sizes are in bytes; a compute capability is such as (9, 0)."""

    name: str
    capability: tuple[int, int]
    arch: str
    processors: int
    shared_bytes: int  # the most dynamic shared memory of a block
    l2_bytes: int
    total: int
    free: int
    bus: str = ""  # PCI address, such as 0000:1a:00.0; empty if the driver does not report it

    @property
    def overlaps(self) -> bool:
        """Hopper and later: a kernel can start while the previous one still runs, and blocks can form clusters."""
        return self.capability >= (9, 0)


class Driver:
    """Calls of the driver API, from any thread. `where` names the subject of a call for errors: a kernel, a graph."""

    def __init__(self, api: Any) -> None:
        self.api = api
        self.context: Any = None  # the card's context, made current in every calling thread
        self._thread = threading.local()
        self.lost: str | None = None  # why the context is lost, if it is
        self.launched = ""  # the newest kernel or graph: a later error belongs to it, or to an earlier one
        self._ending = sys.is_finalizing  # stored: while Python finalizes, names of this module are already deleted

    def call(self, where: str, function: Callable[..., tuple[Any, ...]], *args: Any) -> Any:
        """The result of `function(*args)` without its first item, the status.

        Raises OutOfMemoryError, UnsupportedError for a program that the card cannot run, otherwise KernelError.
        """
        if self.lost is not None:
            raise KernelError(f"{self.lost}; reload the engine", reload=True)
        if self.context is not None and not hasattr(self._thread, "entered"):
            self.api.cuCtxSetCurrent(self.context)
            self._thread.entered = True
        status, *values = function(*args)
        if int(status) == 0:
            return values[0] if len(values) == 1 else tuple(values)
        raise self._error(where, str(status.name))

    def release(self, function: Callable[..., object], handle: Any) -> None:
        """Free a handle. Does nothing if the context is lost or the process ends: then all handles are freed anyway."""
        if self.lost is None and not self._ending():
            function(handle)

    def _error(self, where: str, code: str) -> DFlashError:
        words = code.removeprefix("CUDA_ERROR_").lower().replace("_", " ")
        if code == "CUDA_ERROR_OUT_OF_MEMORY":
            return OutOfMemoryError(
                f"the GPU has no memory left for {where}; shorten the context, or close other programs that use it"
            )
        if code in _WRONG_BINARY:
            major, minor = nvrtc.version()
            return UnsupportedError(
                f"the driver cannot run {where} ({words}): it was compiled with CUDA {major}.{minor}; update the driver"
            )
        if code in _LOST:
            return self.lose(where, words)
        return KernelError(f"{where} failed ({words})")

    def lose(self, where: str, words: str) -> KernelError:
        """Note that the context is lost, with the reason `words`: all later calls fail. Returns the error to raise."""
        before = f", after {self.launched}" if self.launched and self.launched != where else ""
        self.lost = self.lost or f"the GPU gave up in {where}{before} ({words})"
        return KernelError(f"{self.lost}; reload the engine", reload=True)


def find_driver() -> Any:
    """The driver's bindings. Raises DeviceError if the driver or the bindings are missing."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        raise DeviceError(f"no NVIDIA driver ({LIBRARY} was not found); install one") from None
    try:
        from cuda.bindings import driver
    except ImportError:
        raise DeviceError("no cuda-python; install the project again, its CUDA packages are pinned") from None
    return driver


def open_card(
    api: Any, torch: Any, environment: Mapping[str, str] = os.environ, index: int = 0
) -> tuple[Driver, CardFacts]:
    """Open a visible card, in the context that torch uses too.

    Raises DeviceError or UnsupportedError for a card that cannot be used; the message says what to do.
    """
    driver = Driver(api)
    # Torch opens the same context. It must come second, or its own messages would report an unsuitable card.
    card = describe_card(driver, environment, index)
    if torch.version.cuda is None:
        raise DeviceError(f"torch {torch.__version__} is a CPU build, expected the CUDA 13.0 build; install that one")
    try:
        torch.cuda.init()
        torch.cuda.set_device(index)
    except Exception as error:
        raise DeviceError(f"torch cannot use {card.name} ({_first_line(error)}); see dflash-tui doctor") from None
    return driver, card


def describe_card(driver: Driver, environment: Mapping[str, str] = os.environ, index: int = 0) -> CardFacts:
    """The facts of a visible card. Raises DeviceError or UnsupportedError for a card that cannot be used."""
    _start(driver.api, environment)
    _check_version(driver)
    return _describe(driver, driver.call(f"card {index}", driver.api.cuDeviceGet, index))


def _start(api: Any, environment: Mapping[str, str]) -> None:
    status, *_ = api.cuInit(0)
    count = 0
    if int(status) == 0:
        status, count = api.cuDeviceGetCount()
    if int(status) == 0 and count:
        return
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1", "NoDevFiles"):
        raise DeviceError(f"CUDA_VISIBLE_DEVICES={visible!r} hides every GPU; unset it")
    if int(status) == 0 or status.name == "CUDA_ERROR_NO_DEVICE":
        raise DeviceError("the NVIDIA driver shows no GPU; see nvidia-smi")
    raise DeviceError(f"the NVIDIA driver does not start ({status.name}); see nvidia-smi")


def _check_version(driver: Driver) -> None:
    supports = int(driver.call("the driver's version", driver.api.cuDriverGetVersion))
    needed = nvrtc.version()[0]
    if supports // 1000 < needed:
        found = f"{supports // 1000}.{supports % 1000 // 10}"
        raise DeviceError(f"the NVIDIA driver is for CUDA {found}, expected {needed}.0 or later; update it")


def _describe(driver: Driver, device: Any) -> CardFacts:
    api = driver.api
    kind = api.CUdevice_attribute

    def attribute(name: str) -> int:
        return int(driver.call(name, api.cuDeviceGetAttribute, getattr(kind, f"CU_DEVICE_ATTRIBUTE_{name}"), device))

    name = driver.call("the card's name", api.cuDeviceGetName, 128, device).split(b"\0")[0].decode(errors="replace")
    capability = attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")
    try:
        arch = nvrtc.architecture(*capability)
    except UnsupportedError as error:
        raise UnsupportedError(f"{name}: {error}") from None
    status, context = api.cuDevicePrimaryCtxRetain(device)
    if status.name == "CUDA_ERROR_DEVICE_UNAVAILABLE":
        raise DeviceError(f"{name} is used by another program (compute mode exclusive); end it, see nvidia-smi")
    driver.context = driver.call(f"opening {name}", lambda: (status, context))
    free, total = driver.call("the card's memory", api.cuMemGetInfo)
    status, *found = api.cuDeviceGetPCIBusId(BUS_BYTES, device)
    bus = found[0].split(b"\0")[0].decode(errors="replace") if int(status) == 0 else ""
    if not total:
        raise DeviceError(
            f"{name} reports no memory (a vGPU limit of 0); set CUDA_DEVICE_MEMORY_LIMIT to the card's size"
        )
    shared, l2 = attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"), attribute("L2_CACHE_SIZE")
    processors = attribute("MULTIPROCESSOR_COUNT")
    return CardFacts(name, capability, arch, processors, shared, l2, int(total), int(free), bus)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
