"""Variants of kernel files, compiled in parallel with progress and loaded once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from dflash_core.backends.cuda.cache import CubinCache
from dflash_core.backends.cuda.runtime import Kernel, Module, Runtime

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
