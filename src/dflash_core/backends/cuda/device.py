"""The card as passes use it: kernels are compiled and bound on demand; there are one stream and graphs."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy.typing as npt
import torch
from torch import Tensor

from dflash_core import nvrtc, resources
from dflash_core.backends.cuda.host_blocks import HostBlocks
from dflash_core.backends.cuda.launch import Launch, PinnedMemory, Run, Size
from dflash_core.backends.cuda.library import WORKSPACE_BYTES, Library
from dflash_core.backends.cuda.plan import Card
from dflash_core.backends.cuda.runtime import Event, Kernel, Module, Pinned, Runtime
from dflash_core.errors import Code, OutOfMemoryError
from dflash_core.files import write_whole
from dflash_core.memory import gib
from dflash_core.progress import Progress
from dflash_core.user_folders import user_folder

# Called with the number of programs that are ready, and the number of all programs.
Counted = Callable[[int, int], None]
MAX_THREADS = 16


@dataclass(frozen=True, slots=True)
class Variant:
    """A file of kernels/ with its defines; it is compiled to one small program."""

    file: str
    defines: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, file: str, defines: Mapping[str, object] | None = None) -> Variant:
        return cls(file, tuple((name, str(value)) for name, value in (defines or {}).items()))

    def __str__(self) -> str:
        return f"{self.file}({', '.join(f'{name}={value}' for name, value in self.defines)})"


class Programs:
    """The programs of one engine."""

    def __init__(self, runtime: Runtime, cache: CubinCache) -> None:
        self.runtime, self.cache = runtime, cache
        self._modules: dict[Variant, Module] = {}
        self._kernels: dict[tuple[Variant, str], Kernel] = {}

    def compile(self, variants: Iterable[Variant], progress: Counted | None = None) -> None:
        """Compile and load all of `variants`. The compiler uses all cores; later starts find the programs on disk.

        Raises UnsupportedError for a source that does not compile, DeviceError without a compiler.
        """
        missing = [variant for variant in dict.fromkeys(variants) if variant not in self._modules]
        arch = self.runtime.card.arch
        with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1)) as pool:
            codes = {pool.submit(self.cache.get, v.file, arch, dict(v.defines)): v for v in missing}
            try:
                for done, future in enumerate(as_completed(codes), 1):
                    variant = codes[future]
                    self._modules[variant] = self.runtime.load(future.result(), str(variant))
                    if progress:
                        progress(done, len(missing))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def kernel(self, variant: Variant, name: str) -> Kernel:
        """A kernel of a variant, which is compiled first if necessary."""
        key = variant, name
        if key not in self._kernels:
            self.compile([variant])
            self._kernels[key] = self._modules[variant].kernel(name)
        return self._kernels[key]


FORMAT = 1


class CubinCache:
    """Compiles kernels and caches them in a folder, by default that of this user; usable from any thread.

    `note`: why entries could not be saved, or None. `compiled`: how many kernels were compiled.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or user_folder("cache") / "kernels"
        self.note: str | None = None
        self.compiled = 0
        self._lock = threading.Lock()

    def get(self, file: str, arch: str, defines: Mapping[str, str]) -> bytes:
        """Machine code of kernels/`file`. Raises the same errors as nvrtc.compile_cubin."""
        folder = resources.kernels_dir()
        texts = nvrtc.closure(folder / file, (folder,))
        settings = (FORMAT, nvrtc.version(), arch, sorted(defines.items()))
        key = f"{Path(file).stem}-{nvrtc.content_hash(texts, *settings)[:32]}"
        code = self._read(key)
        if code is None:
            code = nvrtc.compile_cubin(texts[folder / file], file, arch, defines=defines, include=[folder])
            with self._lock:
                self.compiled += 1
            self._write(key, code)
        return code

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.cubin"

    def _read(self, key: str) -> bytes | None:
        try:
            data = self._path(key).read_bytes()
        except OSError:
            return None
        digest, code = data[:32], data[32:]
        return code if code and hashlib.sha256(code).digest() == digest else None

    def _write(self, key: str, code: bytes) -> None:
        try:
            write_whole(self._path(key), hashlib.sha256(code).digest() + code)
        except OSError as error:
            why = error.strerror or error
            self.note = f"compiled kernels cannot be saved in {self.folder} ({why}); every start compiles them"


class CudaDevice:
    """Implements `launch.Device` on one visible card. Raises DeviceError if there is no such card."""

    def __init__(self, index: int = 0) -> None:
        self.runtime = Runtime.open(index)
        self.programs = Programs(self.runtime, CubinCache())
        self.torch_device = torch.device("cuda", torch.cuda.current_device())
        self.host = HostBlocks(self.runtime.lock, self.runtime.unlock)
        self.card = Card.of(self.runtime.card)

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Inside the context, torch uses the kernels' stream.

        Raises OutOfMemoryError if torch's allocator does, and KernelError if torch reports a kernel's error.
        """
        try:
            with self.runtime.torch_stream:  # not torch.cuda.stream, which takes 15 us of each step
                yield
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            free, total = self.runtime.memory()
            raise OutOfMemoryError(
                f"{self.runtime.card.name} is full: {gib(free)} of {gib(total)} free; shorten the context, "
                "lower the budget, or close other programs that use the card",
                code=Code.DEVICE_FULL,
            ) from None
        except RuntimeError as error:
            # torch's copies wait for kernels, so torch is often the first to report a kernel's error.
            found, _, words = str(error).partition("CUDA error: ")
            if not words or found:
                raise
            driver = self.runtime.driver
            raise driver.lose(driver.launched or "the GPU", words.splitlines()[0].strip()) from None

    def bind(self, launches: Sequence[Launch], progress: Progress | None = None) -> Run:
        if self.runtime.card.overlaps:
            launches = [launch.clustered or launch for launch in launches]
        variants = [Variant.of(launch.file, launch.defines) for launch in launches]

        def report(done: int, total: int) -> None:
            if progress:
                progress("compiling kernels", done / total)

        self.programs.compile(variants, report)
        bound = [
            self.programs.kernel(variant, launch.name).bind(
                launch.grid, launch.block, launch.args, shared=launch.shared, per_sm=launch.per_sm
            )
            for variant, launch in zip(variants, launches, strict=True)
        ]

        def run() -> None:
            for launch in bound:
                launch()

        return run

    def record(self, name: str, work: Run) -> Run:
        with self.runtime.capture(name) as graph:
            work()
        return graph

    def pinned(self, shape: Size, dtype: npt.DTypeLike) -> PinnedMemory:
        return Pinned(self.runtime, shape, dtype)

    def synchronize(self) -> None:
        self.runtime.synchronize()

    def mark(self) -> Run:
        event = Event(self.runtime)
        event.record()
        return event.wait

    def multiply(self, x: Tensor, weights: Tensor, out: Tensor, *, scale: float = 1.0, add: bool = False) -> None:
        self._library.multiply(x, weights, out, scale=scale, add=add)

    @cached_property
    def _library(self) -> Library:
        """Made on first use: without prompt chunks it is not needed."""
        workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=self.torch_device)
        return Library(self.runtime.driver, self.runtime.stream, workspace)
