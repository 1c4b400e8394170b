"""The most used experts of layers whose experts are in main memory, cached in slots on the card.

Kernels find an expert by a table of addresses in the card's memory, so recorded graphs stay valid while it changes, and
where an expert lies changes no bit. Kernels also count the rows that take each expert. Copies into slots and the new
table are queued on the stream of the steps, between two of them: the bus is what bounds such a step, so a copy beside
it would only share the bus with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dflash_core.backends.cuda.launch import At, Device
from dflash_core.backends.cuda.layers.experts import Experts
from dflash_core.backends.cuda.products import Arena
from dflash_core.backends.cuda.state import STEP_SLOTS

PERIOD = 16  # steps from one reading of the counts to the next
DELAY = STEP_SLOTS  # steps after which the host reads counts that were copied: by then the copy has ended
# Experts that are exchanged at once: in the middle of a turn the next step waits for them, 2 ms for 64 experts of a
# 35B-A3B on a bus of 52 GB/s; before a turn's first step a whole prompt has been counted.
STEP_LIMIT, TURN_LIMIT = 64, 1024
HALF_LIFE = 1024  # rows after which what was counted counts half
MARGIN = 2.0  # standard deviations of the difference of two counts by which an expert must be used more

Counts = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Exchange:
    """`expert` of a layer goes into the slot of another."""

    layer: int
    slot: int
    expert: int


class ExpertCache:
    """`slots` experts of each of `layers`. `used` (layers, experts): rows that took each expert so far, on the card.
    `resident` (layers, slots): the expert in each slot."""

    def __init__(self, device: Device, layers: Sequence[Experts], slots: int) -> None:
        self.device, self.layers = device, layers
        count = layers[0].spec.count
        where = device.torch_device
        self.used = torch.zeros(len(layers), count, dtype=torch.int32, device=where)
        self._counted = device.pinned((len(layers), count), np.int32)
        matrices = max(len(layer.matrices) for layer in layers)
        self._table = device.pinned((len(layers), matrices, count), np.int64)
        self._places = torch.zeros(self._table.array.shape, dtype=torch.int64, device=where)
        self._scores: Counts = np.zeros(self.used.shape)
        self._before = np.zeros(self.used.shape, np.int32)
        self.resident = np.tile(np.arange(slots), (len(layers), 1))
        buffers = [layer.slot_buffers(slots) for layer in layers]
        memory = Arena(torch.empty(sum(map(Arena.need, buffers)), dtype=torch.uint8, device=where))
        self._slots: list[list[Tensor]] = []
        for index, (layer, specs) in enumerate(zip(layers, buffers, strict=True)):
            self._slots.append([*memory.carve(*specs)])
            memory = memory.after(*specs)
            tables = [At(self._places[index], count * at) for at in range(len(layer.matrices))]
            layer.use_places(tables, self.used[index])
            for at, (matrix, own) in enumerate(zip(layer.matrices, self._slots[index], strict=True)):
                own.copy_(matrix.tiles.view(count, -1)[:slots])
                steps = matrix.nbytes // count * np.arange(count)
                self._table.array[index, at] = matrix.address + steps
                self._table.array[index, at, :slots] = own.data_ptr() + steps[:slots]
        self._push()
        self._steps = 0
        self._copied: Callable[[], None] | None = None

    @property
    def nbytes(self) -> int:
        """Of the slots."""
        return sum(layer.cached_bytes(self.resident.shape[1]) for layer in self.layers)

    def between_steps(self) -> None:
        """Called before each step is queued: now and then, exchange experts."""
        self._steps += 1
        if self._steps % PERIOD == 0:
            self._copy_counts()
        elif self._steps % PERIOD == DELAY and self._copied is not None:
            self.exchange(self._chosen(STEP_LIMIT))

    def before_turn(self) -> None:
        """The same at once, with what a prompt has counted. Waits for the device."""
        self._copy_counts()
        self.exchange(self._chosen(TURN_LIMIT))

    def exchange(self, exchanges: Sequence[Exchange]) -> None:
        """Queue these exchanges after everything queued so far."""
        count = self.used.shape[1]
        for one in exchanges:
            left = self.resident[one.layer, one.slot]
            self.resident[one.layer, one.slot] = one.expert
            for at, matrix in enumerate(self.layers[one.layer].matrices):
                slot = self._slots[one.layer][at][one.slot]
                slot.copy_(matrix.tiles.view(count, -1)[one.expert], non_blocking=True)
                places = self._table.array[one.layer, at]
                places[left] = matrix.address + matrix.nbytes // count * left
                places[one.expert] = slot.data_ptr()
        if exchanges:
            self._push()

    def _push(self) -> None:
        self._places.copy_(torch.from_numpy(self._table.array), non_blocking=True)

    def _copy_counts(self) -> None:
        torch.from_numpy(self._counted.array).copy_(self.used, non_blocking=True)
        self._copied = self.device.mark()

    def _chosen(self, limit: int) -> list[Exchange]:
        """The exchanges that the last copied counts call for."""
        assert self._copied is not None
        self._copied()
        self._copied = None
        new, self._before = self._counted.array - self._before, self._counted.array.copy()
        rows = new.sum(1, keepdims=True) / self.layers[0].spec.used
        self._scores = self._scores * 0.5 ** (rows / HALF_LIFE) + new
        return chosen(self._scores, self.resident, limit)


def chosen(scores: Counts, resident: npt.NDArray[np.int64], limit: int) -> list[Exchange]:
    """At most `limit` exchanges, those that gain most. scores (layers, experts): how much each expert is used;
    resident (layers, slots)."""
    found = list[tuple[float, Exchange]]()
    for layer, (score, inside) in enumerate(zip(scores, resident, strict=True)):
        others = np.setdiff1d(np.arange(len(score)), inside)
        others = others[np.argsort(-score[others], kind="stable")]
        slots = np.argsort(score[inside], kind="stable")
        for slot, expert in zip(slots.tolist(), others.tolist(), strict=False):
            more, less = score[expert], score[inside[slot]]
            if more - less <= MARGIN * np.sqrt(more + less):
                break
            found.append((float(more - less), Exchange(layer, slot, expert)))
    found.sort(key=lambda item: -item[0])
    return [one for _, one in found[:limit]]
