"""Checkpoints of a sequence on a card. What rings still hold is copied to the host only when it is about to be
overwritten: many checkpoints are dropped before, and the rows of a large model's windows are hundreds of megabytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakSet

from torch import Tensor

from dflash_core.backends.cuda.launch import Device
from dflash_core.backends.cuda.layers.base import MixerTensors
from dflash_core.backends.cuda.sequence import SequenceMemory


@dataclass(slots=True, eq=False, weakref_slot=True)
class CudaCheckpoint:
    """The state that cannot be rewound, at `length` positions. kept: of each group of layers, in host memory; None
    where rings of the card hold it, until `copy` is called. draft: the checkpoint of a drafter on the card, with its
    tensors `drafted`."""

    length: int
    kept: list[MixerTensors | None]
    draft: object = None
    drafted: tuple[Tensor, ...] = ()
    copy: Callable[[CudaCheckpoint], None] = lambda point: None

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All of them; copies what is not in host memory yet."""
        self.copy(self)
        return (*(tensor for kept in self.kept for tensor in kept or ()), *self.drafted)


class Checkpoints:
    """The checkpoints of a session that rings still hold a part of."""

    def __init__(self, device: Device, memory: SequenceMemory) -> None:
        self._device, self._memory = device, memory
        self._open = WeakSet[CudaCheckpoint]()

    def make(self, length: int, draft: object, drafted: tuple[Tensor, ...]) -> CudaCheckpoint:
        """The checkpoint of a sequence of `length` positions, complete once the device is synchronized."""
        kept = [
            None if memory.like(length) and memory.reaches(length, length) else memory.checkpoint(length, self._empty)
            for memory in self._memory.mixers
        ]
        point = CudaCheckpoint(length, kept, draft, drafted, self._copy)
        self._open.add(point)
        return point

    def before_growing(self, end: int) -> None:
        """Called before the sequence may grow to `end` positions."""
        for point in [*self._open]:
            pairs = zip(point.kept, self._memory.mixers, strict=True)
            if any(kept is None and not memory.reaches(point.length, end) for kept, memory in pairs):
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
                if point.kept[at] is None:
                    point.kept[at] = memory.checkpoint(point.length, self._empty)
            self._device.synchronize()

    @property
    def _empty(self) -> Callable[..., Tensor]:
        return self._device.host.empty
