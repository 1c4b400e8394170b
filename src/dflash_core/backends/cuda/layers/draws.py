"""From logits to the target's own draws: launches of kernels/draw_*.cu and kernels/sample.cu, and their memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dflash_core.backends.cuda.launch import NO_INPUTS, Argument, Launch, PinnedMemory, ceil_div
from dflash_core.backends.cuda.repack import ROWS
from dflash_core.backends.cuda.state import HEADERS, PART_BEFORE, ROW_FRONT, ROW_TOKENS, ROW_TOTAL
from dflash_core.knobs import Knobs

SAMPLE_THREADS = 512
LIST_THREADS, FRONT_THREADS, PART_THREADS = 1024, 512, 256  # per block of kernels/draw_*.cu
DRAW_PART = HEADERS.constants["DRAW_PART"]  # tokens per thread block
MAX_LISTED = HEADERS.constants["MAX_LISTED"]  # up to this top_k, a first kernel lists the tokens that can be drawn


def all_listed(knobs: Knobs, vocab: int) -> bool:
    """Whether draw_list lists every token that can be drawn, so that no other kernel has to look for them: LISTED of
    kernels/draw.cuh."""
    possible = knobs.top_k if knobs.temperature > 0 else 1
    return 0 < possible <= MAX_LISTED and (possible < vocab or knobs.temperature == 0)


@dataclass(frozen=True, slots=True)
class Reported:
    """That a step reports log-probabilities: into `memory`, NODE_LOG_PROBS (slots, nodes), with those of the `top`
    likeliest tokens."""

    memory: PinnedMemory
    top: int

    @property
    def args(self) -> list[Argument]:
        """The memory as kernels get it."""
        return [np.uint64(self.memory.address), *map(np.int32, self.memory.array.shape)]


class Draws:
    """Draws after up to `max_rows` nodes, from rows of logits over `vocab` tokens."""

    def __init__(self, vocab: int, max_rows: int, device: torch.device) -> None:
        self.vocab, self.parts = vocab, ceil_div(vocab, DRAW_PART)

        def buffer(bytes_of_row: int) -> Tensor:
            return torch.zeros(max_rows * bytes_of_row, dtype=torch.uint8, device=device)

        self.tokens = buffer(ROW_TOKENS.itemsize)
        self.fronts = buffer(ROW_FRONT.itemsize)
        self.before = buffer(self.parts * PART_BEFORE.itemsize)
        self.totals = buffer(ROW_TOTAL.itemsize)

    def launches(
        self,
        state: Argument,
        logits: Tensor,
        maxima: Tensor,
        rows: int,
        node0: int,
        *,
        listed: bool = False,
        reported: Reported | None = None,
    ) -> list[Launch]:
        """Draws for `rows` rows, by the turn's sampling settings and each node's own path.

        `logits` f32 (rows, stride), `maxima` f32 (rows, blocks of 16 tokens), both as head_logits writes them.
        `listed`: `all_listed` is true of the settings, so three kernels that would return at once are left out.
        `reported`: the launches follow that of `log_probs_launch`.
        """
        assert maxima.shape[1] == ceil_div(self.vocab, ROWS), "expected one maximum per block of 16 tokens"
        vocab, first, grid = np.int32(self.vocab), np.int32(node0), (self.parts, rows)
        shape = [vocab, np.int32(logits.shape[1]), first]
        front = [
            Launch("draw_parts.cu", "draw_scan", {}, grid, PART_THREADS, [state, logits, *shape, self.tokens]),
            Launch(
                "draw_front.cu", "draw_front", {}, rows, FRONT_THREADS,
                [state, vocab, first, self.tokens, self.fronts],
            ),
            Launch(
                "draw_parts.cu", "draw_weights", {}, grid, PART_THREADS,
                [state, logits, *shape, self.tokens, self.fronts, self.before],
            ),
        ]  # fmt: skip
        defines, more = NO_INPUTS
        if reported is not None:
            defines, more = {"LOG_PROBS": 1}, [self.totals, *reported.args]
        return [
            Launch("draw_list.cu", "draw_list", {}, rows, LIST_THREADS, [state, logits, *shape, maxima, self.tokens]),
            *([] if listed else front),
            Launch(
                "sample.cu", "sample", {"THREADS": SAMPLE_THREADS, **defines}, rows, SAMPLE_THREADS,
                [state, logits, *shape, self.tokens, self.fronts, self.before, np.int32(self.parts), *more],
            ),
        ]  # fmt: skip

    def log_probs_launch(
        self, state: Argument, logits: Tensor, maxima: Tensor, sums: Tensor, rows: int, node0: int, reported: Reported
    ) -> Launch:
        """The softmax of each row, for what `sample` reports, and the likeliest tokens. `logits` and `maxima` as in
        `launches`, before any mask; `sums` like `maxima`, unscaled."""
        sizes = [np.int32(value) for value in (self.vocab, logits.shape[1], node0)]
        return Launch(
            "log_probs.cu", "log_probs", {}, rows, LIST_THREADS,
            [state, logits, *sizes, maxima, sums, np.int32(reported.top), self.totals, *reported.args],
        )  # fmt: skip
