"""The CUDA backend on the emulator: whole passes and steps without a card, on small shapes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dflash_core import resources
from dflash_core.backends.cuda.launch import Argument, Launch, Run, Size
from dflash_core.backends.cuda.plan import Card
from dflash_core.progress import Progress
from support import emulated
from support.engines import _triple


@dataclass
class HostMemory:
    """What stands in for pinned memory."""

    array: npt.NDArray[Any]
    address: int


class PlainRoom:
    """Implements `host_room.HostBlocks` where memory cannot be locked."""

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.empty(tuple(shape), dtype=dtype)

    def prepare(self, sizes: Sequence[int], most: int) -> None:
        """Nothing to prepare: any memory will do."""

    def pause(self) -> None:
        """See `prepare`."""

    def settle(self) -> None:
        """See `prepare`."""

    def close(self) -> None:
        """See `prepare`."""


class EmulatedDevice:
    """Implements `launch.Device`. A few processors keep grids small, yet more than one block shares a matrix."""

    torch_device = torch.device("cpu")

    def __init__(self, processors: int = 3, shared_bytes: int = 227 << 10, busy: bool = True) -> None:
        """`busy`: its models share kernels with those of many tests, which are compiled well at once."""
        self.card, self._busy = Card(processors, shared_bytes), busy
        self.host = PlainRoom()

    def stream(self) -> AbstractContextManager[object]:
        return nullcontext()

    def bind(self, launches: Sequence[Launch], progress: Progress | None = None) -> Run:
        bound = []
        for launch in launches:
            defines = tuple((key, str(value)) for key, value in launch.defines.items())
            kernel = emulated.kernel(resources.kernels_dir() / launch.file, launch.name, defines, session=self._busy)
            values = [packed(argument) for argument in launch.args]
            bound.append(kernel.bound(_triple(launch.grid), _triple(launch.block), values, launch.shared))

        def run() -> None:
            for launched in bound:
                launched()

        return run

    def record(self, name: str, work: Run) -> Run:
        return work

    def pinned(self, shape: Size, dtype: npt.DTypeLike) -> HostMemory:
        array = np.zeros(shape, dtype)
        return HostMemory(array, array.ctypes.data)

    def synchronize(self) -> None:
        pass

    def multiply(self, x: Tensor, weights: Tensor, out: Tensor, *, scale: float = 1.0, add: bool = False) -> None:
        product = scale * (x.float() @ weights.float().T)
        out.copy_(out + product if add else product)

    def mark(self) -> Run:
        return lambda: None


class EmulatedCard(EmulatedDevice):
    """The same, with the properties of a card that loading a pair needs. `free`: free bytes on it."""

    def __init__(self, free: int = 64 << 30) -> None:
        super().__init__()
        named = SimpleNamespace(name="A card", bus="")
        self.runtime = SimpleNamespace(card=named, memory=lambda: (free, 80 << 30))
        self.programs = SimpleNamespace(cache=SimpleNamespace(note=None))


def packed(argument: Argument) -> bytes:
    """An argument as a kernel takes it."""
    if isinstance(argument, bytes):
        return argument
    if isinstance(argument, int):
        return np.int32(argument).tobytes()
    if isinstance(argument, np.generic):
        return argument.tobytes()
    address = argument.data_ptr() if isinstance(argument, Tensor) else argument.address
    return int(address).to_bytes(8, "little")
