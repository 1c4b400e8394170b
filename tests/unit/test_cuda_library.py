"""Calls to cuBLAS, and how its errors are reported, without a card."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dflash_core.backends.cuda.driver import Driver
from dflash_core.backends.cuda.library import WORKSPACE_BYTES, Library
from dflash_core.errors import KernelError, OutOfMemoryError


class Function:
    """One entry: what it was called with, and the status that it returns."""

    def __init__(self) -> None:
        self.calls = list[tuple[Any, ...]]()
        self.status = 0

    def __call__(self, *args: Any) -> int:
        self.calls.append(args)
        return self.status


class FakeLibrary:
    """Entries by name."""

    def __init__(self) -> None:
        self.entries = dict[str, Any]()

    def __getattr__(self, name: str) -> Any:
        return self.entries.setdefault(name, Function())


def library(api: FakeLibrary) -> Library:
    return Library(Driver(None), 7, torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8), api)


def test_the_workspace_is_set_after_the_stream_that_would_reset_it() -> None:
    api = FakeLibrary()
    library(api)
    names = [name for name in api.entries if name != "cublasGemmEx"]
    assert names == ["cublasCreate_v2", "cublasSetStream_v2", "cublasSetWorkspace_v2", "cublasSetMathMode"]
    assert api.cublasSetStream_v2.calls[0][1].value == 7
    assert api.cublasSetWorkspace_v2.calls[0][2].value == WORKSPACE_BYTES


def test_a_product_is_asked_for_by_rows_that_may_lie_apart() -> None:
    api = FakeLibrary()
    of = library(api)
    x = torch.zeros(5, 48, dtype=torch.float16)[:, :32]
    weights = torch.zeros(8, 32, dtype=torch.float16)
    out = torch.zeros(5, 20)[:, 4:12]
    of.multiply(x, weights, out, scale=0.5, add=True)
    of.multiply(x, weights, out.half())
    (_, *of_f32), (_, *of_f16) = api.cublasGemmEx.calls
    assert of_f32[:5] == [1, 0, 8, 5, 32]  # weights as they are in memory, transposed; rows, n, k
    assert of_f32[6:9] == [weights.data_ptr(), 2, 32]
    assert of_f32[9:12] == [x.data_ptr(), 2, 48]
    assert of_f32[13:16] == [out.data_ptr(), 0, 20]
    assert of_f16[14:16] == [2, 8]
    assert of_f32[5] != of_f16[5]
    assert of_f32[12] != of_f16[12]


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [
        (3, OutOfMemoryError, "no memory left for a matrix product"),
        (13, KernelError, r"a matrix product failed \(execution failed\)"),
        (99, KernelError, r"a matrix product failed \(status 99\)"),
    ],
)
def test_an_error_is_one_line(status: int, error: type[Exception], words: str) -> None:
    api = FakeLibrary()
    of = library(api)
    api.cublasGemmEx.status = status
    half = torch.zeros(1, 16, dtype=torch.float16)
    with pytest.raises(error, match=words):
        of.multiply(half, half, torch.zeros(1, 1))
