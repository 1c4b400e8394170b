"""The conversation's text on the device, for trees that copy from it: drafters/text_table.py, kernels/text.cuh."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from dflash_core.backends.cuda.launch import WARP, Argument, Device, Launch, PinnedMemory, Run, ceil_div
from dflash_core.backends.cuda.sending import send
from dflash_core.drafters.text_table import RUNS, SLOTS, TextTable

DEFINES: dict[str, object] = {"TEXT": 1}
BLOCKS = 2  # of tree_build: one builds, the other brings the text close
MOST_NEWS = 1024  # numbers that a list can hold: 256 tokens
LISTS = 4  # of news that take turns: more than there are steps under way or queued
NEWS_THREADS = 4 * WARP


class DeviceText:
    """Arrays of a TextTable as they were when the newest step was queued, of up to `slots` tokens: 0.8 MB, and 4 bytes
    per token. They say nothing until they follow a text."""

    def __init__(self, slots: int, device: Device) -> None:
        self._device = device
        self._last = RUNS * SLOTS  # numbers of the table, which the tokens come behind
        size = self._last + 4 * ceil_div(slots + 1, 4)  # 16 bytes
        self._text = torch.zeros(size, dtype=torch.int32, device=device.torch_device)
        self._source: TextTable | None = None
        self._known = self._cuts = 0
        self._lists: itertools.cycle[tuple[PinnedMemory, Run]] | None = None

    @property
    def inputs(self) -> tuple[Argument, ...]:
        """What tree_build takes more, before the place where it says which nodes came from the text."""
        return self._text, np.int32(len(self._text))

    def launch(self, news: int) -> Launch:
        """What takes the list at the address `news` over."""
        return Launch("text_news.cu", "text_news", {}, 1, NEWS_THREADS, [np.uint64(news), self._text])

    def follow(self, text: TextTable) -> None:
        """Bring the arrays up to date, after what is queued: what grew; all of it where it was cut, or grew by much."""
        begin, end = self._known, len(text)
        cut = self._source is not text or self._cuts != text.cuts
        if cut or (1 + RUNS) * (end - begin) > MOST_NEWS:
            send(text.last.reshape(-1), self._text[: self._last])
            send(text.tokens, self._text[self._last :][:end])
        elif begin < end:
            self._tell(text, begin)
        self._source, self._known, self._cuts = text, end, text.cuts

    def _tell(self, text: TextTable, begin: int) -> None:
        """Have the device take over what the text has gained since it had `begin` tokens."""
        if self._lists is None:
            self._lists = itertools.cycle([self._list() for _ in range(LISTS)])
        news, take_over = next(self._lists)
        places, tokens = text.places(begin)[0], text.tokens[begin:]
        slots, count = len(places), len(places) + len(tokens)
        news.array[0, 0] = count
        pairs = news.array[1 : 1 + count]
        pairs[:slots, 0], pairs[:slots, 1] = places, text.last.reshape(-1)[places]
        pairs[slots:, 0], pairs[slots:, 1] = np.arange(self._last + begin, self._last + len(text)), tokens
        take_over()

    def _list(self) -> tuple[PinnedMemory, Run]:
        news = self._device.pinned((1 + MOST_NEWS, 2), np.int32)
        return news, self._device.bind([self.launch(news.address)])
