"""Variants of kernel files, compiled in parallel with progress and loaded once; compiled kernels are cached on disk.

An entry of the cache is a file `<kernel>-<hash>.cubin`: a checksum, then the machine code. The hash is of all inputs,
so an entry is never out of date. It is written to a temporary file and moved into place, so two processes may write it
at the same time. With a wrong checksum, the kernel is compiled again.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from dflash_core import nvrtc, resources
from dflash_core.backends.cuda.runtime import Kernel, Module, Runtime
from dflash_core.files import write_whole
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


def default_folder() -> Path:
    """The folder of this user's compiled kernels."""
    return user_folder("cache") / "kernels"


class CubinCache:
    """Compiles kernels and caches them in a folder; usable from any thread.

    `note`: why entries could not be saved, or None; they are cached in memory anyway. `compiled`: how many kernels were
    compiled.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or default_folder()
        self.note: str | None = None
        self.compiled = 0
        self._memory: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def get(self, file: str, arch: str, defines: Mapping[str, str]) -> bytes:
        """Machine code of kernels/`file`. Raises the same errors as nvrtc.compile_cubin."""
        folder = resources.kernels_dir()
        texts = nvrtc.closure(folder / file, (folder,))
        settings = (FORMAT, nvrtc.version(), arch, sorted(defines.items()))
        key = f"{Path(file).stem}-{nvrtc.content_hash(texts, *settings)[:32]}"
        code = self._memory.get(key) or self._read(key)
        if code is None:
            code = nvrtc.compile_cubin(texts[folder / file], file, arch, defines=defines, include=[folder])
            with self._lock:
                self.compiled += 1
            self._write(key, code)
        self._memory[key] = code
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
