"""Scores of a block's candidates given their parent token: the table of kernels/pairs.cuh, from which the tree is
built, and a selector that fills it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dflash_core.arch import draft_heads
from dflash_core.backends.cuda.activations import Rounding
from dflash_core.backends.cuda.launch import WARP, Argument, Device, Inputs, Launch
from dflash_core.backends.cuda.layers.base import Upload
from dflash_core.backends.cuda.layers.head import Head
from dflash_core.backends.cuda.projection import Acts, Projection
from dflash_core.backends.cuda.state import MAX_WIDTH, PAIR_CANDIDATES, PAIRING
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
        return Candidates(ids, log_probs, _Found(ids, table), min(ranks, MAX_WIDTH))


@dataclass(frozen=True, slots=True)
class _Found:
    """Implements `tree.Given` from a table: only the best candidates of each parent are possible."""

    ids: npt.NDArray[np.int64]
    table: npt.NDArray[np.void]

    def log_probs(self, depth: int, parent: int) -> npt.NDArray[np.float64]:
        above = int(np.flatnonzero(self.ids[depth - 1] == parent)[0]) if depth else 0
        out = np.full(self.ids.shape[1], -np.inf)
        for one in self.table[depth, above]:
            if one["slot"] >= 0:
                out[one["slot"]] = one["log_prob"]
        return out


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
            [state, self.ids, self.log_probs, self.hidden, np.int32(self.rows), np.int32(self.projection.width),
             np.int32(skip), predecessors, successors, self.pairings],
        )  # fmt: skip
