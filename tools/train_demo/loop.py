"""What the training loops of both stages share: log, clock, learning rate, and batches of packed documents."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from itertools import count
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from . import data, prepare
from .data import ANSWER, Documents, Rows


class Log:
    """Prints lines and keeps them, one JSON object each, next to the weights."""

    def __init__(self, path: Path) -> None:
        self.path, self.start = path, time.monotonic()
        path.write_text("", encoding="utf-8")

    def __call__(self, **values: object) -> None:
        row = {"t": round(time.monotonic() - self.start, 1), **values}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)  # noqa: T201


class Clock:
    """The share of a stage's training time that has passed. It starts after the first steps, which mostly compile."""

    def __init__(self, deadline: float, device: torch.device) -> None:
        self.deadline, self.device = deadline, device
        self.begun = 0.0

    def stepped(self, steps: int) -> None:
        """Note that `steps` steps were queued. Every tenth waits for the GPU, so that `progress` is accurate."""
        if steps != 3 and steps % 10:
            return
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        if steps == 3:
            self.begun = time.monotonic()

    @property
    def progress(self) -> float:
        now = time.monotonic()
        if now >= self.deadline:
            return 1.0
        return (now - self.begun) / (self.deadline - self.begun) if self.begun else 0.0


def schedule(step: int, progress: float, warmup: int, flat: float = 0.3) -> float:
    """Factor of the learning rate: linear warm-up over `warmup` steps, then 1 up to progress `flat`, then linear decay,
    to 0.01 at least."""
    return min((step + 1) / warmup, 1.0) * min(1.0, max((1 - progress) / (1 - flat), 0.01))


def batches(
    documents: Callable[[int], Documents], *, batch: int, length: int, seed: int, device: torch.device
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield without end: the epoch, counted from 1, and `batch` rows of tokens and of seg (batch, length).

    The next epoch is packed in the background. Rows that do not fill the last batch of an epoch are left out; an epoch
    of fewer than `batch` rows is one smaller batch.
    """
    pool = ThreadPoolExecutor(1)

    def packed(epoch: int) -> Rows:
        return data.pack(documents(epoch), length, seed + epoch)

    coming = pool.submit(packed, 0)  # begins at this call, not at the first batch

    def take() -> Iterator[tuple[int, Tensor, Tensor]]:
        nonlocal coming
        for epoch in count(1):
            rows = coming.result()
            coming = pool.submit(packed, epoch)
            rows = Rows(rows.tokens.to(device), rows.seg.to(device))
            for at in range(0, max(1, len(rows) - batch + 1), batch):
                yield epoch, rows.tokens[at : at + batch], rows.seg[at : at + batch]

    return take()


class Fresh:
    """The generated documents of each epoch: the corpus file first, after that new ones made by worker processes."""

    def __init__(self, made: Documents, tokenizer: Path, context: int, seed: int, workers: int) -> None:
        self.made, self.tokenizer, self.context, self.seed = made, tokenizer, context, seed
        self.pool = ProcessPoolExecutor(workers, get_context("spawn")) if workers else None

    def __call__(self, epoch: int) -> Documents:
        if epoch == 0 or self.pool is None:
            return self.made
        size = 5000
        seed = self.seed + 1000 * epoch
        tasks = [(self.tokenizer, i, size, seed, self.context) for i in range(0, len(self.made), size)]
        shards = list(self.pool.map(prepare.fresh_shard, tasks))
        starts = np.cumsum(np.concatenate([[0], *(np.diff(s.starts) for s in shards)])).astype(np.int64)
        return Documents(np.concatenate([s.tokens for s in shards]), starts)


def split_tokens(tokens: Tensor, seg: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """ids, next-token labels, whether the label is in the same document, and whether it is part of an answer."""
    ids = tokens & (ANSWER - 1)
    labels = F.pad(tokens, (0, 1))[:, 1:]
    same = (F.pad(seg, (0, 1), value=-3)[:, 1:] == seg) & (seg >= 0)
    return ids.long(), (labels & (ANSWER - 1)).long(), same, same & (labels >= ANSWER)
