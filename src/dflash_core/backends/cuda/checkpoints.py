"""Checkpoints of a sequence on a card. What rings still have is copied to the host only when it is about to be
overwritten: many checkpoints are dropped before, and the rows of a large model's windows are hundreds of megabytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakSet

from torch import Tensor

from dflash_core.backends.cuda.launch import Device
from dflash_core.backends.cuda.rings import Tensors
from dflash_core.backends.cuda.sequence import SequenceMemory


@dataclass(slots=True, eq=False, weakref_slot=True)
class CudaCheckpoint:
    """The state that cannot be rewound, at `length` positions. saved: of each of the sequence's `states`, in host
    memory; None where rings of the card still have it, until `copy` is called."""

    length: int
    saved: list[Tensors | None]
    copy: Callable[[CudaCheckpoint], None] = lambda point: None

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All of them; copies what is not in host memory yet."""
        self.copy(self)
        return tuple(tensor for saved in self.saved for tensor in saved or ())


class Checkpoints:
    """Checkpoints of a session that rings still have a part of. The drafter's part is copied at once: it is small."""

    def __init__(self, device: Device, memory: SequenceMemory) -> None:
        self._device, self._memory = device, memory
        self._open = WeakSet[CudaCheckpoint]()

    def make(self, length: int) -> CudaCheckpoint:
        """The checkpoint of a sequence of `length` positions, complete once the device is synchronized."""
        later = [state for state in self._memory.mixers if state.like(length) and state.reaches(length, length)]
        empty, states = self._device.host.empty, self._memory.states
        saved = [None if state in later else state.checkpoint(length, empty) for state in states]
        point = CudaCheckpoint(length, saved, self._copy)
        if later:
            self._open.add(point)
        return point

    def before_growing(self, end: int) -> None:
        """Called before the sequence may grow to `end` positions."""
        for point in [*self._open]:
            pairs = zip(point.saved, self._memory.mixers)
            if any(saved is None and not memory.reaches(point.length, end) for saved, memory in pairs):
                self._copy(point)

    def before_cut(self, length: int) -> None:
        """Called before the sequence is truncated to `length` positions: later ones will be overwritten."""
        for point in [*self._open]:
            if point.length > length:
                self._copy(point)

    def _copy(self, point: CudaCheckpoint) -> None:
        if point not in self._open:
            return
        self._open.discard(point)
        with self._device.stream():
            for at, memory in enumerate(self._memory.mixers):
                if point.saved[at] is None:
                    point.saved[at] = memory.checkpoint(point.length, self._device.host.empty)
            self._device.synchronize()
