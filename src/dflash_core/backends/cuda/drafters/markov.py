"""DSpark's Markov head and confidence head on a card: weights and launches, see kernels/markov.cu."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from dflash_core.arch import draft_heads
from dflash_core.backends.cuda.drafters.pairs import PAIR_THREADS, PairTable
from dflash_core.backends.cuda.launch import NULL, WARP, Argument, At, Inputs, Launch, ceil_div
from dflash_core.backends.cuda.layers.base import Upload
from dflash_core.backends.cuda.layers.head import Head
from dflash_core.backends.cuda.projection import Acts
from dflash_core.backends.cuda.repack import ROWS, blocks_of
from dflash_core.backends.cuda.state import PAIR_CANDIDATES

BIAS_WARPS = 8  # warps of markov_bias; each processes a block of ROWS tokens


class DeviceMarkov:
    """w1 and w2 as stored in the file, the scale of w2, and the confidence head."""

    def __init__(self, upload: Upload, spec: draft_heads.Markov) -> None:
        self.spec = spec
        self.above = upload.raw("markov_w1.weight")
        self.below = upload.raw("markov_w2.weight")
        self.scale = upload.vector("markov_w2.scale") if spec.scaled else NULL
        self.confidence = upload.vector("conf_proj.weight") if spec.confidence else NULL
        self.offset = upload.vector("conf_proj.bias") if spec.confidence_bias else NULL

    def table(self, rows: int, hidden: int, vocab: int, device: torch.device) -> PairTable:
        """The table for blocks of `rows` rows of width `hidden`, with logits of at most `vocab` tokens."""
        return MarkovTable(self, rows, hidden, vocab, device)


class MarkovTable(PairTable):
    """Filled by a Markov head. A position's candidates are the best ones after the previous position's best token, so
    positions are processed one after the other."""

    def __init__(self, markov: DeviceMarkov, rows: int, hidden: int, vocab: int, device: torch.device) -> None:
        super().__init__(min(PAIR_CANDIDATES, vocab), rows, device)
        self.markov, self.hidden = markov, hidden
        self.biased = torch.zeros(ROWS * blocks_of(vocab), device=device)  # logits of the current position
        self.maxima = torch.zeros(blocks_of(vocab), device=device)
        self.slots = torch.zeros(rows, PAIR_CANDIDATES, dtype=torch.int32, device=device)
        self.path = torch.zeros(rows, dtype=torch.int32, device=device)
        self.normed: Tensor | None = torch.zeros(rows, hidden, device=device) if markov.spec.confidence else None

    @property
    def _defines(self) -> dict[str, object]:
        markov, spec = self.markov, self.markov.spec
        tables = {"ABOVE": markov.above[0], "BELOW": markov.below[0], "RANK": spec.rank}
        return {**tables, "WIDTH": self.hidden, "CONFIDENCE": spec.confidence}

    def launches(self, state: Argument, head: Head, acts: Acts, depths: int, targets: Inputs) -> Iterator[Launch]:
        yield from head.scored_launches(acts, self.rows)
        for position in range(depths):
            yield from self._position(state, head, position, self.rows - depths + position, targets)
        markov = self.markov
        normed = NULL if self.normed is None else At(self.normed, (self.rows - depths) * self.hidden)
        yield Launch(
            "markov.cu", "markov_scores", self._defines,
            (depths, PAIR_CANDIDATES), PAIR_THREADS,
            [state, self.ids, self.slots, self.log_probs, markov.scale, normed, markov.confidence, markov.offset,
             markov.above[1], markov.below[1], self.pairings],
        )  # fmt: skip

    def _position(self, state: Argument, head: Head, position: int, row: int, targets: Inputs) -> Iterator[Launch]:
        """Candidates of one position; its logits are row `row` of the head's logits."""
        markov, (defines, more) = self.markov, targets
        yield Launch(
            "markov.cu", "markov_bias", self._defines,
            ceil_div(blocks_of(head.vocab), BIAS_WARPS), WARP * BIAS_WARPS,
            [state, At(head.rows, row * head.stride), markov.above[1], markov.below[1], markov.scale, self.path,
             np.int32(head.vocab), np.int32(position), self.biased, self.maxima],
        )  # fmt: skip
        found = [self.ids, self.log_probs, *more, self.biased, self.maxima, self.slots, self.path]
        inputs = {"PAIRS": PAIR_CANDIDATES, **defines, "MARKOV": 1}, found
        yield head.ranked_launch(1, row=row, position=position, inputs=inputs)
