"""Kernels on the first GPU, through the project's own runtime."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dflash_core.backends.cuda.device import CubinCache, Programs, Variant
from dflash_core.backends.cuda.runtime import Kernel as BoundKernel
from dflash_core.backends.cuda.runtime import Runtime
from dflash_core.errors import DFlashError
from support.engines import Kernel, Size, poison


@functools.cache
def runtime() -> Runtime | str:
    """The runtime of the first card, or the reason why there is none."""
    try:
        return Runtime.open()
    except DFlashError as error:
        return f"no GPU: {error}"


def missing() -> str | None:
    """Why kernels cannot run on a GPU here, or None."""
    found = runtime()
    return found if isinstance(found, str) else None


class DeviceArray:
    """A tensor of bytes on the card."""

    def __init__(self, values: npt.NDArray[Any]) -> None:
        import torch

        self.dtype, self.shape, self.nbytes = values.dtype, values.shape, values.nbytes
        self._tensor = torch.empty(max(self.nbytes, 1), dtype=torch.uint8, device="cuda")
        self.address = int(self._tensor.data_ptr())
        self.set(values)

    def set(self, values: npt.NDArray[Any]) -> None:
        """Copy in."""
        import torch

        if values.dtype != self.dtype or values.shape != self.shape:
            raise ValueError(f"{values.dtype}{values.shape} into {self.dtype}{self.shape}")
        data = np.frombuffer(bytearray(np.asarray(values, order="C").tobytes()), np.uint8)
        self._tensor[: self.nbytes].copy_(torch.from_numpy(data))
        torch.cuda.synchronize()

    def numpy(self) -> npt.NDArray[Any]:
        """Copy out."""
        data = bytearray(self._tensor[: self.nbytes].cpu().numpy().tobytes())
        return np.frombuffer(data, self.dtype).reshape(self.shape)


class Launcher:
    """A kernel that is waited for after each launch, so that an error names it."""

    def __init__(self, kernel: BoundKernel) -> None:
        self._kernel, self.sizes = kernel, kernel.sizes

    def __call__(self, grid: Any, block: Any, args: Sequence[bytes], shared: int) -> None:
        self._kernel.bind(grid, block, args, shared=shared)()
        self._kernel.module.runtime.synchronize()


class OnDevice:
    """Kernels on the GPU."""

    name, real = "cuda", True

    def __init__(self) -> None:
        found = runtime()
        assert isinstance(found, Runtime)
        self.runtime = found
        self._programs = Programs(found, CubinCache())

    def kernel(self, file: str, name: str, defines: Mapping[str, Any] | None = None) -> Kernel:
        return Kernel(name, Launcher(self._programs.kernel(Variant.of(file, defines), name)))

    def array(self, values: npt.NDArray[Any]) -> DeviceArray:
        return DeviceArray(values)

    def poisoned(self, shape: Size, dtype: npt.DTypeLike) -> DeviceArray:
        return self.array(poison(shape, dtype))
