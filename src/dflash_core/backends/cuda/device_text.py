"""The conversation's text on the device, for trees that copy from it: drafters/text_table.py, kernels/text.cuh."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from dflash_core.backends.cuda.launch import Argument
from dflash_core.drafters.successors import MATCH_CLASSES
from dflash_core.drafters.text_table import RUNS, SLOTS, TextTable
from dflash_core.policy.values import COPIED, FEATURES

DEFINES: dict[str, object] = {"TEXT": 1}


class DeviceText:
    """Arrays of a TextTable as they were when the newest step was queued, of up to `slots` tokens: 0.8 MB, and 4 bytes
    per token. They say nothing until they follow a text."""

    def __init__(self, slots: int, device: torch.device) -> None:
        self._weights = torch.zeros(MATCH_CLASSES * FEATURES, dtype=torch.float32, device=device)
        self._tokens = torch.zeros(slots + 1, dtype=torch.int32, device=device)
        self._last = torch.zeros(RUNS * SLOTS, dtype=torch.int32, device=device)
        self._source: TextTable | None = None
        self._known = self._cuts = 0

    @property
    def inputs(self) -> tuple[Argument, ...]:
        """What tree_build takes more, before the place where it says which nodes came from the text."""
        return self._weights, self._tokens, self._last

    def weigh(self, weights: npt.NDArray[np.float64]) -> None:
        """Values of successors by `weights` (classes, features), see policy/values.py."""
        own = weights[COPIED : COPIED + MATCH_CLASSES].astype(np.float32).reshape(-1)
        self._weights.copy_(torch.from_numpy(own))

    def follow(self, text: TextTable) -> None:
        """Bring the arrays up to date, after what is queued: what grew, or all of it where it was cut."""
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
