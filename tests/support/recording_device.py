"""A device that computes nothing and records what is launched on it, in a form that does not change when code is moved.

An argument is described by what it points to: a weight by its GGUF name, any other memory by its size, the offset in
it, and the order in which it first occurs in the list. So names of classes, files and attributes may change; kernels,
defines, grids, scalars, and which launches use the same memory, may not.
"""

from __future__ import annotations

import bisect
import hashlib
import struct
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dflash_core.backends.cuda.expert_plan import KIND_BYTES, KINDS, LAUNCH_BYTES, MATRICES, MATRIX_BYTES
from dflash_core.backends.cuda.launch import Argument, Launch, Run
from dflash_core.backends.cuda.plan import MAX_SEGMENTS, SEGMENT_BYTES, Card
from dflash_core.backends.cuda.upload import Upload
from dflash_core.progress import Progress
from support.emulated_device import PlainRoom

PINNED = 0x1000  # the first address of simulated pinned memory


class NamedUpload(Upload):
    """Weights of a file's shapes in memory that is never touched, recorded by name."""

    def __init__(self, file: Any, device: RecordingDevice) -> None:
        super().__init__(file)
        self._device, self._name = device, ""

    def matrix(self, name: str) -> Any:
        self._name = name
        return super().matrix(name)

    def vector(self, name: str) -> Tensor:
        self._name = name
        return super().vector(name)

    def raw(self, name: str) -> tuple[str, Tensor]:
        self._name = name
        return super().raw(name)

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        # A list of tokens is read on the host too; every other piece is too large to be touched.
        tensor = torch.zeros(shape, dtype=dtype) if self._name == "d2t" else torch.empty(shape, dtype=dtype)
        self._device.name(self._name, tensor)
        return tensor


class RecordingDevice:
    """Implements `launch.Device`. `log`: what ran since it was last emptied."""

    torch_device = torch.device("cpu")

    def __init__(self, card: Card) -> None:
        self.card, self.host = card, PlainRoom()
        self.log: list[Launch | tuple[str, tuple[Argument, ...]]] = []
        self._weights: list[tuple[int, int, str]] = []
        self._keep: list[Tensor] = []
        self._pinned = PINNED

    def name(self, name: str, tensor: Tensor) -> None:
        bisect.insort(self._weights, (tensor.data_ptr(), tensor.nbytes, name))
        self._keep.append(tensor)

    def stream(self) -> AbstractContextManager[object]:
        return nullcontext()

    def bind(self, launches: Sequence[Launch], progress: Progress | None = None) -> Run:
        return lambda: self.log.extend(launches)

    def record(self, name: str, work: Run) -> Run:
        return work

    def pinned(self, shape: Any, dtype: Any) -> Any:
        array = np.zeros(shape, dtype)
        self._pinned += 1 << 24
        return SimpleNamespace(array=array, address=self._pinned)

    def synchronize(self) -> None:
        """Nothing runs."""

    def mark(self) -> Run:
        return lambda: None

    def multiply(self, x: Tensor, weights: Tensor, out: Tensor, *, scale: float = 1.0, add: bool = False) -> None:
        sizes = (np.int64(n) for t in (x, weights, out) for n in (*t.shape, *t.stride()))
        self.log.append(("multiply", (x, weights, out, *sizes, np.float64(scale), np.bool_(add))))

    # ---- Normal form ---------------------------------------------------------------------------------------------

    def lines(self, launches: Sequence[Launch | tuple[str, tuple[Argument, ...]]]) -> list[str]:
        """One line per launch."""
        met: dict[int, int] = {}
        return [self._line(launch, met) for launch in launches]

    def _line(self, launch: Launch | tuple[str, tuple[Argument, ...]], met: dict[int, int]) -> str:
        if isinstance(launch, tuple):
            return f"{launch[0]}({', '.join(self._argument(arg, met) for arg in launch[1])})"
        head = f"{launch.file}:{launch.name}{_shape(launch)}"
        if launch.clustered is not None:
            head += f" or {launch.clustered.file}:{launch.clustered.name}{_shape(launch.clustered)}"
            assert list(launch.clustered.args) == list(launch.args), "a clustered launch of other arguments"
        return f"{head} ({', '.join(self._argument(arg, met) for arg in launch.args)})"

    def _argument(self, arg: Argument, met: dict[int, int]) -> str:
        if isinstance(arg, bytes):
            return self._table(arg)
        if isinstance(arg, int):
            return f"int32 {int(arg)}"
        if isinstance(arg, np.generic):
            return f"{arg.dtype.name} {arg.item()!r}"
        tensor = arg if isinstance(arg, Tensor) else getattr(arg, "tensor", None)
        address = arg.data_ptr() if isinstance(arg, Tensor) else arg.address
        found = self._weight(address)
        if found or tensor is None:
            return found or f"address {address}"
        storage = tensor.untyped_storage()
        place = met.setdefault(storage.data_ptr(), len(met))
        return f"m{place}[{storage.nbytes()}]+{address - storage.data_ptr()}"

    def _weight(self, address: int) -> str:
        at = bisect.bisect_right(self._weights, (address, 1 << 62, "")) - 1
        if at < 0:
            return ""
        begin, size, name = self._weights[at]
        return f"{name}+{address - begin}" if address < begin + size else ""

    def _table(self, data: bytes) -> str:
        """The struct of a product: addresses as names, the rest as it is."""
        places, rest = [SEGMENT_BYTES * segment for segment in range(MAX_SEGMENTS)], bytearray(data)
        if len(data) == LAUNCH_BYTES:
            places = [KIND_BYTES * kind + MATRIX_BYTES * matrix for kind in range(KINDS) for matrix in range(MATRICES)]
        addresses = [struct.unpack_from("<Q", data, place)[0] for place in places]
        names = [self._weight(address) or "other" for address in addresses if address]
        for place in reversed(places):
            del rest[place : place + 8]
        return f"[{' '.join(names)} {hashlib.sha256(rest).hexdigest()[:12]}]"


def _shape(launch: Launch) -> str:
    defines = ",".join(f"{name}={value}" for name, value in sorted(launch.defines.items()))
    return f"<{defines}>{launch.grid}x{launch.block}+{launch.shared}/{launch.per_sm}"
