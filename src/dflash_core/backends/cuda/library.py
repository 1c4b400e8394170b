"""cuBLAS through its C interface: products of many rows, on the kernels' stream and in a workspace of fixed size.

torch's own products read the size of their workspace from an environment variable at every call (torch 2.11). If it is
set, that costs 55 us on the host, a thousand times per prompt; if it is not set, the workspace on Hopper is 32 MiB.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dflash_core.backends.cuda.driver import Driver
from dflash_core.errors import DeviceError

# The workspace of cuBLAS: torch's default before Hopper. The products of this program gain nothing from more.
WORKSPACE_BYTES = (8 << 20) + (128 << 10)

# Constants of cublas_api.h and library_types.h.
_TRANSPOSED, _AS_IT_IS = 1, 0
_TYPES = {torch.float16: 2, torch.float32: 0}
_SUMS_IN_F32, _ANY_ALGORITHM = 68, -1
_NO_SUMS_IN_HALVES = 16
_NAMES = {
    1: "not initialized",
    3: "CUDA_ERROR_OUT_OF_MEMORY",  # the driver's name for it
    7: "invalid value",
    8: "architecture mismatch",
    11: "mapping error",
    13: "execution failed",
    14: "internal error",
    15: "not supported",
}
_INT, _POINTER = ctypes.c_int, ctypes.c_void_p
_GEMM = [
    _POINTER, _INT, _INT, _INT, _INT, _INT, _POINTER, _POINTER, _INT, _INT, _POINTER, _INT, _INT, _POINTER, _POINTER,
    _INT, _INT, _INT, _INT,
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Status:
    """The result of a cuBLAS call, in the form that the driver's bindings use."""

    code: int

    def __int__(self) -> int:
        return self.code

    @property
    def name(self) -> str:
        return _NAMES.get(self.code, f"status {self.code}")


class Library:
    """A cuBLAS handle on one stream. Raises DeviceError without cuBLAS, OutOfMemoryError or KernelError if a call
    fails."""

    def __init__(self, driver: Driver, stream: int, workspace: Tensor, api: Any = None) -> None:
        """`workspace`: WORKSPACE_BYTES on the card. `api`: the loaded library; by default the one that torch uses."""
        self._driver, self._workspace, self._api = driver, workspace, api or _load()
        self._gemm = self._api.cublasGemmEx
        self._gemm.argtypes = _GEMM
        self._factors = dict[float, ctypes.c_float]()
        self._handle = ctypes.c_void_p()
        self._call("cublasCreate_v2", ctypes.byref(self._handle))
        self._call("cublasSetStream_v2", self._handle, _POINTER(stream))  # first: it resets the workspace
        size = ctypes.c_size_t(workspace.nbytes)
        self._call("cublasSetWorkspace_v2", self._handle, _POINTER(workspace.data_ptr()), size)
        self._call("cublasSetMathMode", self._handle, _NO_SUMS_IN_HALVES)

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._driver.release(self._api.cublasDestroy_v2, self._handle)

    def multiply(self, x: Tensor, weights: Tensor, out: Tensor, *, scale: float = 1.0, add: bool = False) -> None:
        """out (n, rows) = scale * x (n, k) times weights (rows, k) transposed, or += that: f16 in, sums in f32, `out`
        f32 or f16. Rows may be strided; the elements of a row must be contiguous."""
        (n, k), half = x.shape, _TYPES[torch.float16]
        # In the column-major order of cuBLAS: out^T (rows, n) = weights (rows, k) x^T (k, n).
        self._driver.call(
            "a matrix product", self._status, self._gemm, self._handle, _TRANSPOSED, _AS_IT_IS, len(weights), n, k,
            self._factor(scale), weights.data_ptr(), half, weights.stride(0), x.data_ptr(), half, x.stride(0),
            self._factor(1.0 if add else 0.0), out.data_ptr(), _TYPES[out.dtype], out.stride(0),
            _SUMS_IN_F32, _ANY_ALGORITHM,
        )  # fmt: skip

    def _factor(self, value: float) -> int:
        """The address of a number in memory."""
        if value not in self._factors:
            self._factors[value] = ctypes.c_float(value)
        return ctypes.addressof(self._factors[value])

    def _call(self, name: str, *args: object) -> None:
        self._driver.call("cuBLAS", self._status, getattr(self._api, name), *args)

    @staticmethod
    def _status(function: Any, *args: object) -> tuple[Status]:
        return (Status(function(*args)),)


def _load() -> Any:
    try:
        from cuda import pathfinder

        path = pathfinder.load_nvidia_dynamic_lib("cublas").abs_path  # torch has loaded it already
        return ctypes.CDLL(path)
    except Exception as error:  # without the library, pathfinder raises errors of its own types
        words = (str(error).splitlines() or [type(error).__name__])[0]
        raise DeviceError(f"no cuBLAS ({words}); install torch again, its CUDA build includes it") from None
