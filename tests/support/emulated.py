"""Kernels on the CPU: built with g++ from the CUDA source and tests/support/emulator, called through ctypes."""

from __future__ import annotations

import ctypes
import fcntl
import functools
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dflash_core import nvrtc, resources
from dflash_core.user_folders import user_folder

EMULATOR = Path(__file__).parent / "emulator"
INCLUDE = (EMULATOR, resources.kernels_dir())
# What all kernels begin with, none of it changed by a definition: compiled once.
IN_FRONT = ("emulator.h", "ptx.cuh", "common.cuh")
FLAGS = [
    "-std=c++20",
    "-march=native",
    "-fPIC",
    "-shared",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fwrapv",
    "-fno-gnu-unique",
    "-fno-math-errno",
    "-fno-exceptions",
    "-U_FORTIFY_SOURCE",
    # Where it is on by default, -nostdlib turns it off, and the precompiled header would not be taken.
    "-fno-stack-protector",
]
# A kernel's library has only what its entries need: without the first every function of the headers too.
KERNEL_FLAGS = ["-fwhole-program", "-Werror=invalid-pch"]
# Most kernels run only a few times in all the tests, for less time than compiling them with optimisation takes. So they
# are first compiled without optimisation, and with it once they have run for half as long again as that compilation
# takes, estimated by the size of their code: with it they take a third of the time. The bits are the same. -O2 takes a
# third longer to compile than -O1, and gains less than that; most of what it gains is from short loops that are written
# out.
HURRIED, WELL = ("-O0",), ("-O1", "-fpeel-loops")
RUNTIME = ("-O2",)  # one for all kernels
WORTH_COMPILING_WELL = 2.5e-5  # seconds a byte
# In whole sessions, most variants of these run for so long: compiled with optimisation at once.
BUSY_IN_SESSIONS = ("matmul.cu", "gdn_recurrence.cu", "gdn_single_row.cu", "dequant.cu")
_KERNEL = re.compile(r"__global__ void\s+(?:[A-Z_]+\s+)?(?:__launch_bounds__\([^()]*\)\s+)?(\w+)\(")
# Built libraries stay here between runs and checkouts, named after their content.
BUILDS = user_folder("cache") / "test-emulator"


class KernelFaultError(Exception):
    """A kernel did something that would crash on a GPU, or go unnoticed there. The message has the place."""


def missing() -> str | None:
    """Why kernels cannot be emulated here, or None."""
    return None if shutil.which("g++") else "no g++ to build the emulator with"


class EmulatedArray:
    """Memory that ends at an unmapped page. It exists as long as this object."""

    def __init__(self, values: npt.NDArray[np.generic]) -> None:
        self.dtype, self.shape, self.nbytes = values.dtype, values.shape, values.nbytes
        self.address = int(_runtime().emulator_alloc(values.nbytes))
        self.set(values)

    def __del__(self) -> None:
        if hasattr(self, "address"):
            _runtime().emulator_free(self.address)

    def set(self, values: npt.NDArray[np.generic]) -> None:
        """Copy in."""
        if values.dtype != self.dtype or values.shape != self.shape:
            raise ValueError(f"{values.dtype}{values.shape} into {self.dtype}{self.shape}")
        data = np.asarray(values, order="C")
        ctypes.memmove(self.address, data.ctypes.data, self.nbytes)

    def numpy(self) -> npt.NDArray[np.generic]:
        """Copy out. Raises KernelFaultError where something was written just beside the array."""
        if not _runtime().emulator_intact(self.address):
            raise KernelFaultError(f"something was written beside an array of {self.nbytes} bytes")
        return np.frombuffer(ctypes.string_at(self.address, self.nbytes), self.dtype).reshape(self.shape).copy()


class Library:
    """Kernels of one source under one set of definitions. Together they take hardly longer to compile than one: most of
    their code is shared."""

    def __init__(self, path: Path, names: Sequence[str], defines: Sequence[tuple[str, str]]) -> None:
        self._stem = path.stem
        # As text: with an option whose name occurs in it, the precompiled header is not taken.
        definitions = "".join(f"#define {key} {value}\n" for key, value in defines)
        entries = "".join(f"EMULATED_ENTRY({name})\n" for name in names)
        self._wrapper = f'{definitions}#include "{path}"\n{entries}'
        texts = nvrtc.closure(path, INCLUDE)
        # The emulator's own headers take the place of the kernels' of the same name.
        texts |= {header: header.read_text() for header in sorted(EMULATOR.glob("*.*h"))}
        self._digest = nvrtc.content_hash(texts, definitions, entries, KERNEL_FLAGS, _runtime_path().name)
        self._well = _target(self._stem, self._digest, WELL)
        self.busy = False
        self._left = 0.0  # seconds to run until it is worth compiling well
        self._library: ctypes.CDLL | None = None
        self._entries: dict[str, Any] = {}

    def entry(self, name: str) -> Any:
        """The entry that `emulator_launch` takes. The library is built on first use: of all the kernels of a session, a
        test runs a few."""
        if self._library is None:
            self._load(WELL if self.busy or self._well.is_file() else HURRIED)
            assert self._library is not None
        if name not in self._entries:
            self._entries[name] = self._library[f"emulated_{name}"]
        return self._entries[name]

    def took(self, seconds: float) -> None:
        """Recompile with optimisation after a long run time; use such a build of another worker at once."""
        if self._left > 0.0:
            self._left -= seconds
            if self._left <= 0.0 or self._well.is_file():
                self._load(WELL)

    def _load(self, level: tuple[str, ...]) -> None:
        runtime = _runtime_path()
        target = _target(self._stem, self._digest, level)
        options = [*level, *KERNEL_FLAGS, "-include", str(_header(level))]
        # The standard functions that a kernel calls are already linked into the runtime.
        libraries = ["-nostdlib", str(runtime), "-lgcc", f"-Wl,-rpath,{runtime.parent}", "-Wl,-Bsymbolic"]
        _compile(self._stem, self._wrapper, options, libraries, target)
        self._left = target.stat().st_size * WORTH_COMPILING_WELL if level == HURRIED else 0.0
        self._library, self._entries = ctypes.CDLL(str(target)), {}


class EmulatedKernel:
    """One kernel of one library, which is built with the first call."""

    def __init__(self, library: Library, name: str) -> None:
        self.name, self._library = name, library

    @functools.cached_property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each parameter."""
        runtime, entry = _runtime(), self._library.entry(self.name)
        count = runtime.emulator_parameter_count(entry)
        return tuple(runtime.emulator_parameter_size(entry, i) for i in range(count))

    def __call__(self, grid: Sequence[int], block: Sequence[int], args: Sequence[bytes], shared: int) -> None:
        self.bound(grid, block, args, shared)()

    def bound(
        self, grid: Sequence[int], block: Sequence[int], args: Sequence[bytes], shared: int
    ) -> Callable[[], None]:
        """A function that launches the kernel with these arguments; it may be called repeatedly."""
        buffers = [ctypes.create_string_buffer(value, len(value)) for value in args]
        values = (ctypes.c_void_p * len(args))(*(ctypes.addressof(buffer) for buffer in buffers))
        triple = ctypes.c_uint * 3
        blocks, threads = triple(*grid), triple(*block)

        def run() -> None:
            assert tuple(map(len, buffers)) == self.sizes, (self.name, self.sizes, list(map(len, buffers)))
            start = time.thread_time()
            entry = self._library.entry(self.name)
            failure = _runtime().emulator_launch(entry, blocks, threads, shared, values)
            if failure is not None:
                raise KernelFaultError(f"{self.name}: {failure.decode()}")
            self._library.took(time.thread_time() - start)

        return run


@functools.cache
def kernel(path: Path, name: str, defines: tuple[tuple[str, str], ...], session: bool = False) -> EmulatedKernel:
    """`name` of the source at `path`: built when it is called, or taken from the library of an earlier run.

    `session`: it runs in the passes of a session, not in a test of its own.
    """
    always = _unconditional_kernels(path)
    _runtime()
    library = _library(path, always if name in always else (name,), defines)
    library.busy |= session and path.name in BUSY_IN_SESSIONS
    return EmulatedKernel(library, name)


@functools.cache
def _unconditional_kernels(path: Path) -> tuple[str, ...]:
    """The kernels that exist under all definitions: neither inside an #if nor made by a macro."""
    depth, text = 0, []
    for line in path.read_text().splitlines():
        depth += line.startswith("#if")
        text.append(line if not depth else "")
        depth -= line.startswith("#endif")
    return tuple(_KERNEL.findall("\n".join(text)))


@functools.cache
def _library(path: Path, names: tuple[str, ...], defines: tuple[tuple[str, str], ...]) -> Library:
    return Library(path, names, defines)


def in_front() -> dict[Path, str]:
    """The files that all kernels begin with. Headers of the emulator replace those of kernels/ with the same name."""
    texts: dict[Path, str] = {}
    for name in IN_FRONT:
        path = next(folder / name for folder in INCLUDE if (folder / name).is_file())
        texts |= nvrtc.closure(path, INCLUDE)
    replaced = {resources.kernels_dir() / file.name for file in EMULATOR.iterdir()}
    return {file: text for file, text in texts.items() if file not in replaced}


@functools.cache
def _header(level: tuple[str, ...]) -> Path:
    """What is in front of every kernel, precompiled."""
    options = [*level, *KERNEL_FLAGS]
    text = "".join(f"#include <{name}>\n" for name in IN_FRONT)
    digest = nvrtc.content_hash(in_front(), text, FLAGS, options)[:24]
    header = BUILDS / f"emulator-{digest}.h"
    compiled = header.with_suffix(".h.gch")
    _compile("the emulator", text, [*options, "-x", "c++-header"], [], compiled)
    if not header.is_file():  # what the compiler asks for
        header.write_text(text)
    return header


@functools.cache
def _runtime_path() -> Path:
    source = EMULATOR / "runtime.cpp"
    target = _target("runtime", nvrtc.content_hash(nvrtc.closure(source), "runtime"), RUNTIME)
    _compile("runtime", f'#include "{source}"\n', RUNTIME, [], target)
    return target


@functools.cache
def _runtime() -> ctypes.CDLL:
    library = ctypes.CDLL(str(_runtime_path()), ctypes.RTLD_GLOBAL)
    library.emulator_alloc.argtypes, library.emulator_alloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    library.emulator_free.argtypes, library.emulator_free.restype = [ctypes.c_void_p], None
    library.emulator_intact.argtypes = [ctypes.c_void_p]
    library.emulator_launch.restype = ctypes.c_char_p
    library.emulator_launch.argtypes = [
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p
    ]  # fmt: skip
    library.emulator_parameter_count.argtypes = [ctypes.c_void_p]
    library.emulator_parameter_size.argtypes = [ctypes.c_void_p, ctypes.c_int]
    return library


def _target(name: str, digest: str, level: Sequence[str]) -> Path:
    return BUILDS / f"lib{name}-{nvrtc.content_hash({}, FLAGS, digest, level)[:24]}.so"


def _compile(name: str, text: str, options: Sequence[str], libraries: Sequence[str], target: Path) -> None:
    """Build `target` if it does not exist; if another worker is building it, wait for that."""
    if target.is_file():
        return
    BUILDS.mkdir(parents=True, exist_ok=True)
    lock = BUILDS / f"{nvrtc.content_hash({}, target.name)[:2]}.lock"
    with lock.open("w") as held, tempfile.TemporaryDirectory(dir=BUILDS) as folder:
        fcntl.flock(held, fcntl.LOCK_EX)
        if target.is_file():
            return
        source, out = Path(folder) / "source.cpp", Path(folder) / "out"
        source.write_text(text)
        include = [f"-I{folder}" for folder in INCLUDE]
        command = ["g++", *FLAGS, *include, *options, str(source), "-o", str(out), *libraries]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise KernelFaultError(f"{name} does not compile for the emulator:\n{done.stderr[:6000]}")
        os.replace(out, target)
