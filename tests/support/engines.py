"""Two engines for each kernel test: the emulator, which runs everywhere, and a GPU where there is one.

    def test_scale(engine):
        kernel = engine.kernel("scale.cu", "scale", {"WIDTH": 4})
        out = engine.poisoned((64,), np.float32)
        kernel(grid=2, block=32, args=[out, engine.array(x), np.float32(2)])
        check(out.numpy())

Arrays are passed by address; scalars as ints of 32 bits or numpy scalars, so that their size is always known.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dflash_core import resources
from support import emulated

Size = int | Sequence[int]
ENGINES = ("emulated", "cuda")


class Array(Protocol):
    """Memory of an engine."""

    address: int
    nbytes: int

    def numpy(self) -> npt.NDArray[Any]:
        """Copy out."""

    def set(self, values: npt.NDArray[Any]) -> None:
        """Copy in: same dtype and shape."""


class At:
    """An address inside an array: `At(array, 12)` is its 12th element."""

    def __init__(self, array: Array, element: int) -> None:
        self.array = array
        self.address = array.address + element * array.dtype.itemsize  # type: ignore[attr-defined]


class Kernel:
    """A kernel of one engine. Each call checks how many arguments it takes, and of which sizes."""

    def __init__(self, name: str, launcher: Any) -> None:
        self.name, self._launcher = name, launcher

    def __call__(self, grid: Size, block: Size, args: Sequence[Any], shared: int = 0) -> None:
        values = [_bytes(arg) for arg in args]
        expected, found = tuple(self._launcher.sizes), tuple(map(len, values))
        if found != expected:
            raise TypeError(f"{self.name} takes arguments of {expected} bytes, got {found}")
        self._launcher(_triple(grid), _triple(block), values, shared)


class Engine(Protocol):
    """Compiles kernels, holds arrays."""

    name: str
    real: bool  # whether this is a GPU, where tests use real shapes

    def kernel(self, file: str, name: str, defines: Mapping[str, Any] | None = None) -> Kernel:
        """Compile `name` of kernels/`file`; the second time it comes from a cache."""

    def array(self, values: npt.NDArray[Any]) -> Any:
        """Copy in."""

    def poisoned(self, shape: Size, dtype: npt.DTypeLike) -> Any:
        """An array of NaN, or of 0x7f bytes where the type has none: what an output is before a kernel wrote it."""


class Emulated:
    """Kernels on the CPU: see tests/support/emulator."""

    name, real = "emulated", False

    def kernel(self, file: str, name: str, defines: Mapping[str, Any] | None = None) -> Kernel:
        pairs = tuple((key, str(value)) for key, value in (defines or {}).items())
        return Kernel(name, emulated.kernel(resources.kernels_dir() / file, name, pairs))

    def array(self, values: npt.NDArray[Any]) -> emulated.EmulatedArray:
        return emulated.EmulatedArray(values)

    def poisoned(self, shape: Size, dtype: npt.DTypeLike) -> emulated.EmulatedArray:
        return self.array(poison(shape, dtype))


def poison(shape: Size, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """NaN, or 0x7f bytes where the type has no NaN."""
    if np.issubdtype(np.dtype(dtype), np.floating):
        return np.full(shape, np.nan, dtype)
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    count = math.prod(sizes)
    return np.frombuffer(bytearray(b"\x7f" * count * np.dtype(dtype).itemsize), dtype).reshape(sizes)


def missing(name: str) -> str | None:
    """Why the engine cannot run here, or None."""
    if name == "emulated":
        return emulated.missing()
    from support import on_device

    return on_device.missing()


@functools.cache
def engine_named(name: str) -> Engine:
    """The engine, made once."""
    if name == "emulated":
        return Emulated()
    from support import on_device

    return on_device.OnDevice()


def _triple(size: Size) -> tuple[int, int, int]:
    sizes = (size,) if isinstance(size, int) else tuple(size)
    return (*sizes, 1, 1)[:3]  # type: ignore[return-value]


def _bytes(arg: Any) -> bytes:
    if hasattr(arg, "address"):
        return int(arg.address).to_bytes(8, "little")
    if isinstance(arg, bytes):  # a struct passed by value
        return arg
    if isinstance(arg, int):
        return np.int32(arg).tobytes()
    if isinstance(arg, np.generic):
        return arg.tobytes()
    raise TypeError(f"a kernel argument is an array, a numpy scalar or a struct's bytes, not {type(arg).__name__}")
