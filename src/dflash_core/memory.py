"""The memory breakdown: what each component will need, predicted from headers and settings before allocation."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from dflash_core.errors import Code, KnobError, OutOfMemoryError, Shortage

Bytes = Annotated[int, Meta(ge=0, le=2**60)]  # in a record
OTHERS = "other processes"  # the component of other processes
PROGRAM = "program"  # that of this process before any model was loaded, which stays when one is released
EXPERT_PLACES = ("card", "host", "auto")
MIN_BYTES = 512  # what is less was meant as another unit
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True)
class Component:
    """One consumer of memory: predicted bytes, a description, and the bytes found, where that can be measured."""

    name: str
    bytes: Bytes
    detail: str = ""
    measured: Bytes | None = None

    @property
    def off(self) -> float:
        """The error of the prediction, as a share of it; 0 where nothing was measured."""
        return 0.0 if self.measured is None else abs(self.measured - self.bytes) / max(self.bytes, 1)


HOST = "this machine"
"""The device of a model on the CPU."""


@dataclass(frozen=True, slots=True)
class MemoryBreakdown:
    """Predicted bytes by component, and the device's memory. `measured`: the process's real use, 0 where unknown."""

    device: str
    components: tuple[Component, ...]
    total: Bytes
    free: Bytes
    measured: Bytes = 0

    @property
    def predicted(self) -> int:
        return sum(one.bytes for one in self.components)


def gib(count: int) -> str:
    """Bytes as shown to users: 1.5 GiB, 12 MiB, 3 KiB."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


@dataclass(frozen=True, slots=True)
class HostExperts:
    """The experts in main memory: of how many layers, and their bytes. `cached`: experts of each of these layers that
    the card caches, and `cached_bytes` on the card."""

    layers: int = 0
    bytes: int = 0
    cached: int = 0
    cached_bytes: int = 0

    def __str__(self) -> str:
        layers = f"{self.layers} layer{'s' * (self.layers != 1)}"
        cached = f", {self.cached} of each cached on the card, {gib(self.cached_bytes)}" if self.cached else ""
        return f"experts of {layers} in main memory, {gib(self.bytes)}{cached}"


def checked_experts(text: str) -> str:
    """`text` if it says where routed experts are: one of EXPERT_PLACES, or in main memory those of a number of layers.
    Raises KnobError."""
    if text in EXPERT_PLACES or (text.isascii() and text.isdecimal() and len(text) <= 4):
        return text
    raise KnobError(f"{text!r} as a place of experts, expected {', '.join(EXPERT_PLACES)}, or a number of layers")


def weights_detail(layers: int, host_bytes: int, experts: HostExperts) -> str:
    """The description of a target's weights. `host_bytes`: of the token embedding, if it stays in main memory."""
    embedding = [f"token embedding in main memory, {gib(host_bytes)}"] if host_bytes else []
    return "; ".join([f"{layers} layers", *embedding, *([str(experts)] if experts.layers else [])])


def parse_bytes(text: str) -> int:
    """Bytes of a size such as 24GiB, 24G, 512MiB or a plain number of bytes; a small one lacks its unit. Raises
    KnobError."""
    match = _SIZE.fullmatch(text.strip())
    count = float(match[1]) * _UNITS[match[2].lower()] if match else 0
    if match and 1 <= count < MIN_BYTES:
        raise KnobError(f"{text}: {count:g} bytes of memory, expected a unit, such as {match[1]}GiB or {match[1]}MiB")
    if not 1 <= count < 1 << 60:
        raise KnobError(f"found {text!r}, expected an amount of memory above 0, such as 24GiB or 800MiB")
    return int(count)


def check(needed: MemoryBreakdown, remedies: str, shortage: Shortage | None = None) -> None:
    """Refuse a load that does not fit. Raises OutOfMemoryError naming the components, largest first.

    `shortage`: detailed figures, if there are more than the needed and the free bytes.
    """
    if needed.predicted <= needed.free:
        return
    largest = sorted(needed.components, key=lambda one: one.bytes, reverse=True)
    parts = ", ".join(f"{one.name} {gib(one.bytes)}" for one in largest[:4])
    raise OutOfMemoryError(
        f"needs {gib(needed.predicted)} on {needed.device} ({parts}) but {gib(needed.free)} is free; {remedies}",
        code=Code.DOES_NOT_FIT,
        shortage=shortage or Shortage(needed.predicted, needed.free),
    )


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Bytes of this machine's memory: total, available, and used by this process."""

    total: int
    free: int
    process: int


def host_memory() -> HostMemory:
    """Read the machine's memory, or a container's limit if that is lower. Figures that cannot be read are estimated:
    half of the total as available (macOS), the peak for the process."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = _fields("/proc/meminfo").get("MemAvailable:", total // 2 >> 10) << 10
    limit = _fields("/sys/fs/cgroup/memory.max").get("", 0)
    if limit and limit < total:
        # Pages of files that were read count as used there, but the kernel frees them on demand.
        cached = _fields("/sys/fs/cgroup/memory.stat").get("inactive_file", 0)
        used = _fields("/sys/fs/cgroup/memory.current").get("", 0) - cached
        total, free = limit, min(free, max(0, limit - used))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return HostMemory(total, free, _fields("/proc/self/status").get("VmRSS:", 0) << 10 or peak)


def give_back() -> None:
    """Return memory that was freed to the system, where the C library keeps it (glibc): what a load took for a while
    would else count as the program's."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _fields(path: str) -> dict[str, int]:
    """The numbers of a file of the system by the word before each, "" for a bare one; none where there is no such
    file."""
    try:
        lines = [line.split() for line in Path(path).read_text().splitlines()]
    except OSError:
        return {}
    found = ((words[0], words[1]) if len(words) > 1 else ("", *words) for words in lines if words)
    return {name: int(number) for name, number in found if number.isdigit()}
