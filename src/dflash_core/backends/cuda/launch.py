"""What a pass is made of: launches as plain data, and the device that binds and runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dflash_core.backends.cuda.host_room import HostRoom
from dflash_core.backends.cuda.plan import Card
from dflash_core.progress import Progress

Size = int | tuple[int, ...]
Defines = Mapping[str, object]
Run = Callable[[], None]
Copy = tuple[Tensor, Tensor]  # where it goes on the device, and what
Load = tuple[Sequence[Copy], slice]  # of all of these the slice of the first dimension


class HasAddress(Protocol):
    """Memory that a kernel reaches: pinned arrays, places inside a tensor."""

    @property
    def address(self) -> int: ...


Argument = Tensor | HasAddress | np.generic | bytes
Inputs = tuple[dict[str, object], Sequence[Argument]]
"""What a kernel is compiled for and given besides."""
NO_INPUTS: Inputs = ({}, ())
NULL = np.uint64(0)
WARP = 32


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True, slots=True)
class At:
    """A place inside a tensor: `At(tensor, 12)` is its 12th element."""

    tensor: Tensor
    element: int

    @property
    def address(self) -> int:
        return int(self.tensor.data_ptr()) + self.element * self.tensor.element_size()


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel of kernels/`file`, compiled with `defines`, and all it is launched with.

    Arguments keep what they point to alive. `shared`: bytes of dynamic shared memory. `per_sm`: blocks that one
    multiprocessor may take, 0 for as many as fit. `clustered`: the same work for cards with thread block clusters.
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
    """Host memory that kernels write to and read from: `array` here, `address` there."""

    array: npt.NDArray[Any]
    address: int


class Device(Protocol):
    """Where passes run: a card, or the emulator of the tests."""

    @property
    def torch_device(self) -> torch.device: ...

    @property
    def card(self) -> Card: ...

    @property
    def host(self) -> HostRoom:
        """The memory that holds copies of sequences."""

    def bring(self, parts: Sequence[Sequence[Load]]) -> Sequence[Run]:
        """Make copies of what lies in `host`, in order and after all that was launched so far, beside what is launched
        from then on. The n-th result makes what is launched after it wait for the n-th part; the sources stay alive
        until the device was waited for after that."""

    def bind(self, launches: Sequence[Launch], progress: Progress | None = None) -> Run:
        """Compile what is not compiled yet, check arguments, and return what launches them all in order."""

    def record(self, name: str, work: Run) -> Run:
        """Record what `work` launches; returns what replays it."""

    def pinned(self, shape: Size, dtype: npt.DTypeLike) -> PinnedMemory:
        """Host memory, zeroed."""

    def synchronize(self) -> None:
        """Wait for all that was launched. Raises KernelError naming the kernel where one failed."""

    def mark(self) -> Run:
        """Mark what was launched so far; calling the result waits until the device has come there."""

    def multiply(self, x: Tensor, weights: Tensor, out: Tensor, *, scale: float = 1.0, add: bool = False) -> None:
        """out (n, rows) = scale * x (n, k) times weights (rows, k) transposed, or += that: f16 in, sums in f32.

        `out` is f32 or f16.
        """

    def stream(self) -> AbstractContextManager[object]:
        """torch works in order with the launches inside."""


def pointer(tensor: Tensor | None) -> Argument:
    """A tensor as an argument, or a null pointer."""
    return NULL if tensor is None else At(tensor, 0)
