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
    log, assembly = _compiled(source, name, arch, defines or {}, include)
    bodies = dict(_ENTRY.findall(assembly))
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


def _compiled(
    source: str, name: str, arch: str, defines: Mapping[str, str], include: Iterable[Path]
) -> tuple[str, str]:
    """What the compiler prints, and the assembly."""
    api, ok = nvrtc._nvrtc(), nvrtc._ok
    options = [f"--gpu-architecture={arch}", "--std=c++17", "--ptxas-options=-v"]
    options += [f"--include-path={folder}" for folder in (*include, nvrtc._headers())]
    options += [f"--define-macro={key}={value}" for key, value in defines.items()]
    program = ok(api.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], []))
    try:
        failed = int(api.nvrtcCompileProgram(program, len(options), [one.encode() for one in options])[0])
        log = bytearray(ok(api.nvrtcGetProgramLogSize(program)))
        ok(api.nvrtcGetProgramLog(program, log))
        assert not failed, log.decode(errors="replace")
        text = bytearray(ok(api.nvrtcGetPTXSize(program)))
        ok(api.nvrtcGetPTX(program, text))
    finally:
        api.nvrtcDestroyProgram(program)
    printed, assembly = (bytes(one).rstrip(b"\0").decode(errors="replace") for one in (log, text))
    return printed, assembly
