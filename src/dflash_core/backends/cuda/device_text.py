"""The conversation's text on the device, for trees that copy from it: drafters/text_table.py, kernels/text.cuh."""

from __future__ import annotations

import numpy as np
import torch

from dflash_core.backends.cuda.launch import Argument, ceil_div
from dflash_core.backends.cuda.sending import send
from dflash_core.drafters.text_table import RUNS, SLOTS, TextTable

DEFINES: dict[str, object] = {"TEXT": 1}


BLOCKS = 2  # of tree_build: one builds, the other brings the text close


class DeviceText:
    """Arrays of a TextTable as they were when the newest step was queued, of up to `slots` tokens: 0.8 MB, and 4 bytes
    per token. They say nothing until they follow a text."""

    def __init__(self, slots: int, device: torch.device) -> None:
        self._last = RUNS * SLOTS  # numbers of the table, which the tokens come behind
        self._text = torch.zeros(self._last + 4 * ceil_div(slots + 1, 4), dtype=torch.int32, device=device)  # 16 bytes
        self._source: TextTable | None = None
        self._known = self._cuts = 0

    @property
    def inputs(self) -> tuple[Argument, ...]:
        """What tree_build takes more, before the place where it says which nodes came from the text."""
        return self._text, np.int32(len(self._text))

    def follow(self, text: TextTable) -> None:
        """Bring the arrays up to date, after what is queued: what grew, or all of it where it was cut."""
        begin, end = self._known, len(text)
        if self._source is not text or self._cuts != text.cuts:
            send(text.last.reshape(-1), self._text[: self._last])
            send(text.tokens, self._text[self._last :][:end])
        elif begin < end:
            slots, _ = text.places(begin)
            at = np.concatenate([slots, np.arange(self._last + begin, self._last + end)])
            # Two runs of one slot: both write what stands there.
            values = np.concatenate([text.last.reshape(-1)[slots], text.tokens[begin:end]])
            news = torch.empty((2, len(at)), dtype=torch.int64, device=self._text.device)
            send(np.stack([at, values]), news)
            self._text.index_copy_(0, news[0], news[1].to(torch.int32))
        self._source, self._known, self._cuts = text, end, text.cuts
