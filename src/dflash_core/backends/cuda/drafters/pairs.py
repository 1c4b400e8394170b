"""Scores of a block's candidates given their parent token: the table of kernels/pairs.cuh, from which the tree is
built, and what fills it: a selector, or DSpark's Markov head with its confidence head (kernels/markov.cu)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dflash_core.arch import draft_heads
from dflash_core.backends.cuda.activations import Rounding
from dflash_core.backends.cuda.launch import NULL, WARP, Argument, At, Device, Inputs, Launch, ceil_div
from dflash_core.backends.cuda.layers.head import Head
from dflash_core.backends.cuda.projection import Acts, Projection
from dflash_core.backends.cuda.repack import ROWS, blocks_of
from dflash_core.backends.cuda.state import MAX_WIDTH, PAIR_CANDIDATES, PAIRING
from dflash_core.backends.cuda.upload import Upload
from dflash_core.errors import Code, UnsupportedError
from dflash_core.tree import Candidates

PAIR_THREADS = WARP * PAIR_CANDIDATES


class PairTable(ABC):
    """For each draft position of a block of `rows` rows: the `top_k` best candidates, their marginal probabilities, and
    their probabilities after each candidate of the previous position."""

    projection: Projection | None = None
    """A projection of the block's final normed rows, in addition to the head."""
    normed: Tensor | None = None
    """Where the norm must also write these rows, f32 (rows, hidden)."""

    def __init__(self, top_k: int, rows: int, device: torch.device) -> None:
        self.top_k, self.rows = top_k, rows
        self.ids = torch.zeros(rows, PAIR_CANDIDATES, dtype=torch.int32, device=device)
        self.log_probs = torch.zeros(rows, PAIR_CANDIDATES, device=device)
        size = rows * PAIR_CANDIDATES * MAX_WIDTH * PAIRING.itemsize
        self.pairings = torch.zeros(size, dtype=torch.uint8, device=device)

    def projected_launches(self, acts: Acts) -> list[Launch]:
        """The rows times `projection`."""
        return []

    @abstractmethod
    def launches(self, state: Argument, head: Head, acts: Acts, depths: int, targets: Inputs) -> Iterator[Launch]:
        """From the activations of the block's rows to the table; the last `depths` rows are draft positions.
        `targets`: the mapping of candidates to target tokens, if `head` has its own vocabulary."""

    @property
    def tree_inputs(self) -> Inputs:
        """More defines and arguments of tree_build."""
        return {"PAIRS": 1}, [self.ids, self.pairings]

    def candidates(self, depths: int, ranks: int) -> Candidates:
        """Results of the last launches for `depths` positions, with at most `ranks` candidates below each node."""
        ids = self.ids[:depths, : self.top_k].cpu().numpy().astype(np.int64)
        log_probs = self.log_probs[:depths, : self.top_k].double().cpu().numpy()
        table = self.pairings.cpu().numpy().view(PAIRING).reshape(self.rows, PAIR_CANDIDATES, MAX_WIDTH)

        def given(depth: int, parent: int) -> npt.NDArray[np.float64]:
            """Only the best candidates of each parent are possible."""
            above = int(np.flatnonzero(ids[depth - 1] == parent)[0]) if depth else 0
            out = np.full(ids.shape[1], -np.inf)
            for one in table[depth, above]:
                if one["slot"] >= 0:
                    out[one["slot"]] = one["log_prob"]
            return out

        return Candidates(ids, log_probs, given, min(ranks, MAX_WIDTH))


class DeviceSelector:
    """A selector's three matrices. Raises UnsupportedError for more candidates than the kernels support."""

    def __init__(self, device: Device, upload: Upload, spec: draft_heads.Selector, rounding: Rounding) -> None:
        if spec.top_k > PAIR_CANDIDATES:
            raise UnsupportedError(
                f"a selector among {spec.top_k} tokens per position, expected at most {PAIR_CANDIDATES} on a card; "
                "run it on the CPU",
                code=Code.NOT_ON_THIS_DEVICE,
            )
        self.spec = spec
        self.hidden = Projection(device, [upload.matrix("selector_hidden.weight")], rounding)
        self.above = upload.raw("selector_predecessor.weight")
        self.below = upload.raw("selector_successor.weight")

    def table(self, rows: int, hidden: int, vocab: int, device: torch.device) -> PairTable:
        """The table for blocks of `rows` rows."""
        return SelectorTable(self, rows, device)


class SelectorTable(PairTable):
    """Filled by a selector, which scores the best candidates by the head's logits."""

    projection: Projection

    def __init__(self, selector: DeviceSelector, rows: int, device: torch.device) -> None:
        super().__init__(selector.spec.top_k, rows, device)
        self.selector, self.projection = selector, selector.hidden
        self.hidden = torch.zeros(self.projection.split_k * rows * self.projection.width, device=device)

    def projected_launches(self, acts: Acts) -> list[Launch]:
        return self.projection.launches(acts, self.hidden, self.rows)

    def launches(self, state: Argument, head: Head, acts: Acts, depths: int, targets: Inputs) -> Iterator[Launch]:
        (above, predecessors), (below, successors) = self.selector.above, self.selector.below
        defines, more = targets
        skip, found = self.rows - depths, ({"PAIRS": self.top_k, **defines}, [self.ids, self.log_probs, *more])
        yield from head.candidate_launches(acts, self.rows, skip=skip, inputs=found)
        yield Launch(
            "pairs.cu", "pair_scores",
            {"ABOVE": above, "BELOW": below, "RANK": self.selector.spec.rank, "SPLIT_K": self.projection.split_k},
            (depths, PAIR_CANDIDATES), PAIR_THREADS,
            [state, self.ids, self.log_probs, self.hidden, self.rows, self.projection.width, skip, predecessors,
             successors, self.pairings],
        )  # fmt: skip


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
             head.vocab, position, self.biased, self.maxima],
        )  # fmt: skip
        found = [self.ids, self.log_probs, *more, self.biased, self.maxima, self.slots, self.path]
        inputs = {"PAIRS": PAIR_CANDIDATES, **defines, "MARKOV": 1}, found
        yield head.ranked_launch(1, row=row, position=position, inputs=inputs)
