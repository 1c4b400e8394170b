"""Kernel launches as plain data, and the interface of the device that binds and runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dflash_core.backends.cuda.host_blocks import HostBlocks
from dflash_core.backends.cuda.plan import Card
from dflash_core.progress import Progress

Size = int | tuple[int, ...]
Defines = Mapping[str, object]
Run = Callable[[], None]


class HasAddress(Protocol):
    """Memory that a kernel can access: pinned arrays, places inside a tensor."""

    @property
    def address(self) -> int: ...


Argument = Tensor | HasAddress | np.generic | int | bytes
"""An `int` is one of 32 bits."""
Inputs = tuple[dict[str, object], Sequence[Argument]]
"""More defines and more arguments of a kernel."""
NO_INPUTS: Inputs = ({}, ())
NULL = np.uint64(0)
WARP = 32


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True, slots=True)
class At:
    """A place inside a tensor: `At(tensor, 12)` is its element 12, counted from 0."""

    tensor: Tensor
    element: int

    @property
    def address(self) -> int:
        return int(self.tensor.data_ptr()) + self.element * self.tensor.element_size()


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel of kernels/`file`, compiled with `defines`, and everything that a launch of it needs.

    Arguments keep the memory that they point to alive. `shared`: bytes of dynamic shared memory. `per_sm`: the most
    blocks per multiprocessor, 0 for as many as fit. `clustered`: the same work for cards with thread block clusters.
    """

    file: str
    name: str
    defines: Defines
    grid: Size
    block: Size
    args: Sequence[Argument]
    shared: int = 0
    per_sm: int = 0
    clustered: Launch | None = None


class PinnedMemory(Protocol):
    """Host memory that kernels read and write: `array` for the host, `address` for kernels."""

    array: npt.NDArray[Any]
    address: int


class Device(Protocol):
    """What passes run on: a card, or the emulator of the tests."""

    @property
    def torch_device(self) -> torch.device: ...

    @property
    def card(self) -> Card: ...

    @property
    def host(self) -> HostBlocks:
        """Host memory for copies of sequences."""

    def bind(self, launches: Sequence[Launch], progress: Progress | None = None) -> Run:
        """Compile what is not compiled yet, check arguments, and return a function that runs all launches in order."""

    def record(self, name: str, work: Run) -> Run:
        """Record the launches of `work`; returns a function that replays them."""

    def pinned(self, shape: Size, dtype: npt.DTypeLike) -> PinnedMemory:
        """Zeroed host memory that kernels can access."""

    def synchronize(self) -> None:
        """Wait for all launches. If a kernel failed, raises KernelError with its name."""

    def mark(self) -> Run:
        """Mark this point after all launches so far; calling the result waits until the device has reached it."""

    def multiply(self, x: Tensor, weights: Tensor, out: Tensor, *, scale: float = 1.0, add: bool = False) -> None:
        """out (n, rows) = scale * x (n, k) times weights (rows, k) transposed, or += that: f16 in, sums in f32.

        `out` is f32 or f16.
        """

    def stream(self) -> AbstractContextManager[object]:
        """Inside the context, torch uses the stream of the launches."""


def optional(**given: Argument | None) -> Inputs:
    """The defines and the arguments of a kernel's options, of those that are given."""
    there = {name: one for name, one in given.items() if one is not None}
    return dict.fromkeys(there, 1), [*there.values()]


def pointer(tensor: Tensor | None) -> Argument:
    """A tensor as an argument, or a null pointer."""
    return NULL if tensor is None else At(tensor, 0)
