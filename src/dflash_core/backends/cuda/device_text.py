"""The conversation's text on the device, for trees that copy from it: drafters/text_table.py, kernels/text.cuh."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from dflash_core.backends.cuda.launch import Argument, Device
from dflash_core.backends.cuda.state import STEP_SLOTS
from dflash_core.drafters.successors import MATCH_CLASSES
from dflash_core.drafters.text_table import RUNS, SLOTS, TextTable
from dflash_core.policy.values import COPIED, FEATURES

DEFINES: dict[str, object] = {"TEXT": 1}


class DeviceText:
    """Arrays of a TextTable as they were when the newest step was queued. 0.8 MB, and 4 bytes per position.

    `copied`: pinned, by a step's slot the nodes that came from the text, a bit each.
    """

    def __init__(self, device: Device, context: int) -> None:
        where = device.torch_device
        self.copied = device.pinned(STEP_SLOTS, np.uint64)
        self._weights = torch.zeros(MATCH_CLASSES * FEATURES, dtype=torch.float32, device=where)
        self._tokens = torch.zeros(context + 1, dtype=torch.int32, device=where)
        self._last = torch.full((RUNS * SLOTS,), -1, dtype=torch.int32, device=where)
        self._source: TextTable | None = None
        self._known = self._cuts = 0

    @property
    def inputs(self) -> tuple[Argument, ...]:
        """What tree_build takes more."""
        return self._weights, self._tokens, self._last, np.uint64(self.copied.address), np.int32(STEP_SLOTS)

    def weigh(self, weights: npt.NDArray[np.float64]) -> None:
        """Values of successors by `weights` (classes, features), see policy/values.py."""
        own = weights[COPIED : COPIED + MATCH_CLASSES].astype(np.float32).reshape(-1)
        self._weights.copy_(torch.from_numpy(own))

    def follow(self, text: TextTable) -> None:
        """Bring the arrays up to date, behind what is queued: what grew, or all of it where it was cut."""
        begin, end = self._known, len(text)
        if self._source is not text or self._cuts != text.cuts:
            self._last.copy_(torch.from_numpy(text.last.reshape(-1)))
            begin = 0
        elif begin < end:
            places = text.places(begin)
            at = np.concatenate([run * SLOTS + slots for run, slots, _ in places])
            values = text.last.reshape(-1)[at]  # two runs of one slot: both write what stands there
            where = self._last.device
            self._last.index_copy_(0, torch.from_numpy(at).to(where), torch.from_numpy(values).to(where))
        if begin < end:
            self._tokens[begin:end].copy_(torch.from_numpy(text.tokens[begin:end]))
        self._source, self._known, self._cuts = text, end, text.cuts
