"""What compiled kernels use: registers, shared memory, spills. No card is needed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dflash_core import nvrtc

_ENTRY = re.compile(r"\.entry (\w+)\(.*?\n\{(.*?)\n\}", re.DOTALL)
_USE = re.compile(
    r"Function properties for (\w+)\s+(?:ptxas\s+\.\s+)?(\d+) bytes stack frame, "
    r"\d+ bytes spill stores, \d+ bytes spill loads"
    r"\s+ptxas info\s*: Used (\d+) registers(?:[^\n]*?(\d+) bytes smem)?"
)
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")


@dataclass(frozen=True, slots=True)
class KernelUse:
    """The resources of one kernel: registers per thread, bytes of static shared memory per block.

    `spilled`: bytes of registers per thread that did not fit and are spilled to memory, in the kernel and its callees.
    `stack`: bytes of local arrays.
    `releases`, `waits`: whether it lets the next kernel start early, and waits for the one before.
    """

    registers: int
    spilled: int
    shared: int
    stack: int
    releases: bool
    waits: bool


def report(
    source: str, name: str, arch: str, *, defines: Mapping[str, str] | None = None, include: Iterable[Path] = ()
) -> dict[str, KernelUse]:
    """Compile as compile_cubin does; returns what each kernel uses, by name. Needs no card."""
    with nvrtc._compiled(source, name, arch, defines or {}, include, "--ptxas-options=-v") as (api, program, log):
        text = bytearray(nvrtc._ok(api.nvrtcGetPTXSize(program)))
        nvrtc._ok(api.nvrtcGetPTX(program, text))
    bodies = dict(_ENTRY.findall(nvrtc._text(text)))
    return {
        kernel: KernelUse(
            int(registers),
            sum(int(stores) + int(loads) for stores, loads in _SPILLS.findall(section)),
            int(shared or 0),
            int(stack),
            "griddepcontrol.launch_dependents" in bodies[kernel],
            "griddepcontrol.wait" in bodies[kernel],
        )
        for section in log.split("Compiling entry function")
        for kernel, stack, registers, shared in _USE.findall(section)
    }
