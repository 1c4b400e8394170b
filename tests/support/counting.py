"""A scripted backend for runners and decoders: no model, no torch, and its committed tokens can be read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dflash_core.backends.base import AnswerOptions
from dflash_core.backends.decoder import Decoder
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.drafters.draw_noise import ranked
from dflash_core.knobs import Knobs
from dflash_core.tree import Candidates

VOCAB, STOP = 50, 49


@dataclass
class Point:
    length: int
    tokens: list[int]
    nbytes: int = 0


def row_of(token: int, vocabulary: int = VOCAB) -> np.ndarray:
    """Logits whose only likely token is `token`."""
    row = np.zeros(vocabulary, np.float32)
    row[token] = 5
    return row


class CountingBackend:
    """Its "target" continues any text with last token + 1 (mod 40); its drafts are right for `right` tokens.

    It holds the committed tokens themselves, so a test can see whether state and answer agree.
    """

    def __init__(self, right: int = 3, block: int = 8) -> None:
        self.tokens: list[int] = []
        self.right, self.block = right, block
        self.runs: list[list[int]] = []
        self.pending: list[int] = []
        self.on_prefill = lambda: None
        self.fail_at = -1
        self.cuts = False  # whether it can truncate without a checkpoint

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def capabilities(self) -> Capabilities | None:
        return Capabilities("counting", self.block) if self.block else None

    def decoder(self, options: AnswerOptions) -> Decoder:
        return Decoder(self, options)

    def propose(self, root: int, knobs: Knobs, at: int | None = None) -> Candidates:
        return ranked(self.draft(root, knobs.draft_window), knobs, self.length)

    def _row(self, token: int) -> np.ndarray:
        return row_of(self.after(token))

    def after(self, token: int) -> int:
        return (token + 1) % 40

    def in_chunks(self, count: int) -> bool:
        return False

    def prefill(self, tokens: Sequence[int], cancelled: Callable[[], bool] | None = None) -> np.ndarray:
        self.on_prefill()
        self.runs.append(list(tokens))
        self.tokens += tokens
        return self._row(tokens[-1])

    def draft(self, root: int, window: int, at: int | None = None) -> np.ndarray:
        rows, token = [], root
        for depth in range(self.block - 1):
            token = self.after(token) if depth < self.right else 45
            rows.append(row_of(token))
        return np.stack(rows)

    def verify(self, tokens: Sequence[int], parents: Sequence[int]) -> np.ndarray:
        if self.length >= self.fail_at >= 0:
            raise RuntimeError("a pass that breaks")
        self.pending = list(tokens)
        return np.stack([self._row(token) for token in tokens])

    def commit(self, path: Sequence[int]) -> None:
        self.tokens += [self.pending[node] for node in path]

    def checkpoint(self) -> Point:
        return Point(self.length, list(self.tokens))

    def cut(self, length: int) -> bool:
        if self.cuts:
            del self.tokens[length:]
        return self.cuts

    def restore(self, checkpoint: Point | None) -> None:
        self.tokens = list(checkpoint.tokens) if checkpoint else []
