"""The target's head: logits of verify rows and of draft rows, or only the best token of each row; and
the target's own draws from logits."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dflash_core.backends.cuda.device_state import DeviceState
from dflash_core.backends.cuda.launch import (
    NO_INPUTS,
    WARP,
    Argument,
    At,
    Inputs,
    Launch,
    PinnedMemory,
    ceil_div,
    optional,
)
from dflash_core.backends.cuda.products import Arena, TensorSpec
from dflash_core.backends.cuda.projection import Acts, Matrix, Projection
from dflash_core.backends.cuda.repack import ROWS, blocks_of
from dflash_core.backends.cuda.state import BEST_PART, HEADERS, PART_BEFORE, PASS_ROWS, ROW_FRONT, ROW_TOKENS, ROW_TOTAL
from dflash_core.backends.cuda.target_model import DeviceTarget
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
        return [np.uint64(self.memory.address), *self.memory.array.shape]


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
        grid, shape = (self.parts, rows), [self.vocab, logits.shape[1], node0]
        front = [
            Launch("draw_parts.cu", "draw_scan", {}, grid, PART_THREADS, [state, logits, *shape, self.tokens]),
            Launch("draw_front.cu", "draw_front", {}, rows, FRONT_THREADS,
                   [state, self.vocab, node0, self.tokens, self.fronts]),
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
                [state, logits, *shape, self.tokens, self.fronts, self.before, self.parts, *more],
            ),
        ]  # fmt: skip

    def log_probs_launch(
        self, state: Argument, logits: Tensor, maxima: Tensor, sums: Tensor, rows: int, node0: int, reported: Reported
    ) -> Launch:
        """The softmax of each row, for what `sample` reports, and the likeliest tokens. `logits` and `maxima` as in
        `launches`, before any mask; `sums` like `maxima`, unscaled."""
        return Launch(
            "log_probs.cu", "log_probs", {}, rows, LIST_THREADS,
            [state, logits, self.vocab, logits.shape[1], node0, maxima, sums, reported.top, self.totals,
             *reported.args],
        )  # fmt: skip


CANDIDATE_THREADS = 512
MASK_THREADS = 256


class Head:
    """One matrix without split-K: a thread block writes complete logits.

    `arena`: memory whose size includes `pieces`; others use it while no logits are read.
    """

    def __init__(self, target: DeviceTarget, state: DeviceState, arena: Arena) -> None:
        device, self._device = target.device.torch_device, target.device
        self._scale, self._softcap = target.spec.logit_scale, target.spec.softcap
        self._suppressed = suppressed_bits(target.spec.suppressed, target.output.rows, device)
        self.state, self.vocab = state, target.output.rows
        self.full = Projection(target.device, [target.output], target.activations.head, split_k=1)
        self.stride = self.full.width
        self._buffers = tuple(arena.carve(*self.pieces(target)))
        self.rows, self.maxima, self.sums = self._buffers
        self._first = 0  # how many of the first rows of a matrix are used, 0 for all
        self.best = torch.zeros(PASS_ROWS * self.full.plan.grid * BEST_PART.itemsize, dtype=torch.uint8, device=device)
        self.draws = Draws(self.vocab, PASS_ROWS, device)

    @staticmethod
    def pieces(target: DeviceTarget) -> Sequence[TensorSpec]:
        """Logits, and the maximum and the sum that head_logits writes for each block of 16 rows of the matrix."""
        blocks = blocks_of(target.output.rows)
        return [((PASS_ROWS, width), torch.float32) for width in (ROWS * blocks, blocks, blocks)]

    def launches(self, acts: Acts, rows: int) -> list[Launch]:
        """Logits of `rows` rows, into `rows`."""
        return self.scored_launches(acts, rows) if self.shaped else self.full.launches(acts, self.rows, rows)

    @property
    def shaped(self) -> bool:
        """Whether logits are more than the product."""
        return self._scale != 1 or self._softcap > 0 or self._suppressed is not None

    def argmax_launches(self, acts: Acts, rows: int, node0: int) -> list[Launch]:
        """Greedy sampling: the best token after each node becomes its draw."""
        args, parts = [*self.full.act_args(acts), self.best], self.full.plan.grid
        return [
            *self.full.launches_of("head.cu", "head_argmax", rows, args, self._allowed),
            Launch("tree.cu", "merge_draws", {}, rows, WARP, [self.state.pointer, self.best, parts, node0]),
        ]

    def sample_launches(
        self,
        acts: Acts,
        rows: int,
        node0: int,
        *,
        listed: bool,
        masks: PinnedMemory | None = None,
        reported: Reported | None = None,
    ) -> list[Launch]:
        """A draw after each node, by the turn's sampling settings and the node's own path; `listed`: see
        `draws.all_listed`. `masks`: what may be drawn, a row of `constraints.base.Mask` for each node of the tree.
        `reported`: log-probabilities are reported."""
        scores = self.state.pointer, self.rows, self.maxima
        launches = self._logits_launches(acts, rows, {} if reported is None else {"SUMS": 1, "UNSCALED": 1})
        if reported is not None:
            launches.append(self.draws.log_probs_launch(*scores, self.sums, rows, node0, reported))
        if masks is not None:
            launches.append(self.mask_launch(masks, rows, node0))
        return launches + self.draws.launches(*scores, rows, node0, listed=listed, reported=reported)

    def mask_launch(self, masks: PinnedMemory, rows: int, node0: int) -> Launch:
        """Rule out, of the logits of nodes from `node0` on, what the node's row of `masks` does not allow."""
        return Launch(
            "mask.cu", "mask_logits", {}, (ceil_div(self.maxima.shape[1], MASK_THREADS), rows), MASK_THREADS,
            [self.state.pointer, self.rows, self.maxima, np.uint64(masks.address), ceil_div(self.vocab, 32), self.vocab,
             self.stride, node0],
        )  # fmt: skip

    def candidate_launches(
        self,
        acts: Acts,
        rows: int,
        *,
        skip: int = 0,
        position: int = 0,
        inputs: Inputs = NO_INPUTS,
    ) -> list[Launch]:
        """Candidates of draft positions from `position` on, from `rows` rows of activations without the first `skip`.
        `inputs`: more defines and arguments of the kernel."""
        ranked = self.ranked_launch(rows - skip, row=skip, position=position, inputs=inputs)
        return [*self.scored_launches(acts, rows), ranked]

    def scored_launches(self, acts: Acts, rows: int) -> list[Launch]:
        """Logits of `rows` rows, with the maxima and sums that the search for candidates needs."""
        return self._logits_launches(acts, rows, {"SUMS": 1})

    def ranked_launch(self, count: int, *, row: int, position: int, inputs: Inputs = NO_INPUTS) -> Launch:
        """Candidates of `count` draft positions from `position` on, from logits from row `row` on; `inputs` as in
        `candidate_launches`."""
        defines, more = inputs
        live = [At(x, row * x.shape[1]) for x in (self.rows, self.maxima, self.sums)]
        return Launch(
            "candidates.cu", "candidates", defines, count, CANDIDATE_THREADS,
            [self.state.pointer, *live, self.vocab, self.stride, position, *more],
        )  # fmt: skip

    def _logits_launches(self, acts: Acts, rows: int, sums: dict[str, object]) -> list[Launch]:
        """Logits with the maxima of their blocks; `sums`: defines for each block's part of a softmax denominator."""
        allowed, more = self._allowed
        extra = sums | allowed
        if self._scale != 1 or self._softcap > 0:
            extra |= {"LOGIT_SCALE": self._scale, "SOFTCAP": self._softcap}
        args = [self.state.pointer, *self.full.act_args(acts), self.rows, self.maxima, self.sums]
        return self.full.launches_of("logits.cu", "head_logits", rows, args, (extra, more))

    @property
    def _allowed(self) -> Inputs:
        """More defines and arguments of kernels that leave tokens out."""
        return optional(SUPPRESSED=self._suppressed)

    @property
    def matrix(self) -> Matrix:
        return self.full.matrices[0]

    def first(self, rows: int) -> Head:
        """The same head over the first `rows` tokens of the vocabulary, in whole blocks of 16; 0 for all."""
        if not rows or rows >= self.vocab:
            return self
        other = copy.copy(self)
        other._first = max(rows // ROWS, 1) * ROWS
        found = other.of(self.matrix, self._scale, self._softcap)
        found._suppressed = self._suppressed
        return found

    def of(self, matrix: Matrix, scale: float = 1.0, softcap: float = 0.0) -> Head:
        """The same head with another matrix and with its logits in the same memory.

        Logits are multiplied by `scale` and limited by `softcap`; 0 for no limit. The matrix must not have more rows
        than the target's.
        """
        other = copy.copy(self)
        if 0 < self._first < matrix.rows:
            matrix = replace(matrix, rows=self._first, tiles=matrix.tiles[: self._first // ROWS])
        other._scale, other._softcap, other._suppressed = scale, softcap, None
        other.full = Projection(self._device, [matrix], self.full.product.rounding, split_k=1)
        other.vocab, other.stride = matrix.rows, other.full.width
        blocks = blocks_of(matrix.rows)
        other.rows, other.maxima, other.sums = (
            whole.view(-1)[: PASS_ROWS * width].view(PASS_ROWS, width)
            for whole, width in zip(self._buffers, (ROWS * blocks, blocks, blocks), strict=True)
        )
        return other

    def on_host(self, rows: int) -> Tensor:
        """Logits (rows, vocab) of the last `launches`, copied to the host and cut there: torch would first make a copy
        of cut rows on the card."""
        return self.rows[:rows].to("cpu", copy=True)[:, : self.vocab]


def suppressed_bits(tokens: Sequence[int], vocab: int, device: torch.device) -> Tensor | None:
    """A bit for each of `vocab` tokens, in whole blocks of rows, set for those of `tokens`: int32; None for none."""
    if not tokens:
        return None
    bits = np.zeros(-(-ROWS * blocks_of(vocab) // 32) * 32, np.uint8)
    bits[list(tokens)] = 1
    return torch.from_numpy(np.packbits(bits, bitorder="little").view(np.int32).copy()).to(device)
