"""The conversation's tokens on the device, for trees that copy; see drafters/ngram_table.py, kernels/ngrams.cuh."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from dflash_core.backends.cuda.device_state import send
from dflash_core.backends.cuda.launch import WARP, Argument, Device, Launch, PinnedMemory, Run, ceil_div
from dflash_core.backends.cuda.state import STEP_SLOTS
from dflash_core.drafters.ngram_table import RUNS, SLOTS, NgramTable

DEFINES: dict[str, object] = {"TEXT": 1}
BLOCKS = 2  # of tree_build: one builds the tree, the other prefetches the text
MAX_CHANGES = 1024  # the most changed numbers in a list: those of 256 new tokens
CHANGE_THREADS = 4 * WARP


class DeviceNgrams:
    """A copy of a NgramTable's arrays from when the newest step was queued, for up to `slots` tokens: 0.8 MB, and
    4 bytes per token. It is empty until `follow` is called."""

    def __init__(self, slots: int, device: Device) -> None:
        self._device = device
        self._last = RUNS * SLOTS  # numbers of the table; the tokens follow them
        size = self._last + 4 * ceil_div(slots + 1, 4)  # a multiple of 16 bytes
        self._text = torch.zeros(size, dtype=torch.int32, device=device.torch_device)
        self._source: NgramTable | None = None
        self._known = self._cuts = 0
        self._lists: itertools.cycle[tuple[PinnedMemory, Run]] | None = None

    @property
    def inputs(self) -> tuple[Argument, ...]:
        """More arguments of tree_build, before the address for the bits of nodes copied from the text."""
        return self._text, np.int32(len(self._text))

    def launch(self, changes: int) -> Launch:
        """The launch that applies the list of changes at the address `changes`."""
        return Launch("text_update.cu", "text_update", {}, 1, CHANGE_THREADS, [np.uint64(changes), self._text])

    def follow(self, text: NgramTable) -> None:
        """Update the arrays, after the queued steps: only with new tokens, or completely if the text was cut or has
        grown by many tokens."""
        begin, end = self._known, len(text)
        cut = self._source is not text or self._cuts != text.cuts
        if cut or (1 + RUNS) * (end - begin) > MAX_CHANGES:
            send(text.last.reshape(-1), self._text[: self._last])
            send(text.tokens, self._text[self._last :][:end])
        elif begin < end:
            self._add(text, begin)
        self._source, self._known, self._cuts = text, end, text.cuts

    def _add(self, text: NgramTable, begin: int) -> None:
        """Send the tokens that were added to the text since it had `begin` tokens, and the changes to the table."""
        if self._lists is None:
            self._lists = itertools.cycle([self._list() for _ in range(STEP_SLOTS)])
        changes, apply = next(self._lists)
        places, tokens = text.places(begin)[0], text.tokens[begin:]
        slots, count = len(places), len(places) + len(tokens)
        changes.array[0, 0] = count
        pairs = changes.array[1 : 1 + count]
        pairs[:slots, 0], pairs[:slots, 1] = places, text.last.reshape(-1)[places]
        pairs[slots:, 0], pairs[slots:, 1] = np.arange(self._last + begin, self._last + len(text)), tokens
        apply()

    def _list(self) -> tuple[PinnedMemory, Run]:
        changes = self._device.pinned((1 + MAX_CHANGES, 2), np.int32)
        return changes, self._device.bind([self.launch(changes.address)])
