"""Compiled kernels on disk. Their names contain a hash of all inputs, so that an entry is never out of date.

An entry is a file `<kernel>-<hash>.cubin`: a checksum, then the machine code. It is written to a temporary file and
moved into place, so two processes may write it at the same time. With a wrong checksum, the kernel is compiled again.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from pathlib import Path

from dflash_core import nvrtc, resources
from dflash_core.files import write_whole
from dflash_core.user_folders import user_folder

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
            self.note = f"compiled kernels cannot be kept in {self.folder} ({why}); every start compiles them"
