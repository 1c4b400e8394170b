"""Scores of a block's candidates by the token above them on a card: a selector's weights, its launches, and the table
of kernels/pairs.cuh, which the tree is built from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from dflash_core.arch import draft_heads
from dflash_core.backends.cuda.activations import Rounding
from dflash_core.backends.cuda.launch import WARP, Argument, Device, Launch
from dflash_core.backends.cuda.layers.base import Upload
from dflash_core.backends.cuda.projection import Acts, Projection
from dflash_core.backends.cuda.state import MAX_WIDTH, PAIR_CANDIDATES, PAIRING
from dflash_core.errors import Code, UnsupportedError
from dflash_core.tree import Candidates


class DeviceSelector:
    """The three parts of its product. Raises UnsupportedError for more candidates than a card looks at."""

    def __init__(self, device: Device, upload: Upload, spec: draft_heads.Selector, rounding: Rounding) -> None:
        if spec.top_k > PAIR_CANDIDATES:
            raise UnsupportedError(
                f"a selector among {spec.top_k} tokens of a position, expected {PAIR_CANDIDATES} at most on a card; "
                "run it on the CPU",
                code=Code.NOT_ON_THIS_DEVICE,
            )
        self.spec = spec
        self.hidden = Projection(device, [upload.matrix("selector_hidden.weight")], rounding)
        self.above = upload.raw("selector_predecessor.weight")
        self.below = upload.raw("selector_successor.weight")


class PairTable:
    """Of the draft positions of a block of `rows` rows: the candidates of each, how likely they are by themselves, and
    below each candidate of the position before."""

    def __init__(self, selector: DeviceSelector, rows: int, device: torch.device) -> None:
        self.selector, self.rows = selector, rows
        self.ids = torch.zeros(rows, PAIR_CANDIDATES, dtype=torch.int32, device=device)
        self.log_probs = torch.zeros(rows, PAIR_CANDIDATES, device=device)
        size = rows * PAIR_CANDIDATES * MAX_WIDTH * PAIRING.itemsize
        self.pairings = torch.zeros(size, dtype=torch.uint8, device=device)
        self.hidden = torch.zeros(selector.hidden.split_k * rows * selector.hidden.width, device=device)

    def hidden_launches(self, acts: Acts) -> list[Launch]:
        """The rows' own part of the product."""
        return self.selector.hidden.launches(acts, self.hidden, self.rows)

    @property
    def candidate_inputs(self) -> tuple[dict[str, object], Sequence[Argument]]:
        """What the kernel of candidates is compiled for and given besides."""
        return {"PAIRS": self.selector.spec.top_k}, [self.ids, self.log_probs]

    @property
    def tree_inputs(self) -> tuple[dict[str, object], Sequence[Argument]]:
        """The same of tree_build."""
        return {"PAIRS": 1}, [self.ids, self.pairings]

    def launches(self, state: Argument, depths: int) -> Iterator[Launch]:
        """From the candidates of `depths` positions, the last rows of the block, to the table."""
        (above, predecessors), (below, successors) = self.selector.above, self.selector.below
        projection = self.selector.hidden
        yield Launch(
            "pairs.cu", "pair_scores",
            {"ABOVE": above, "BELOW": below, "RANK": self.selector.spec.rank, "SPLIT_K": projection.split_k},
            (depths, PAIR_CANDIDATES), WARP * PAIR_CANDIDATES,
            [state, self.ids, self.log_probs, self.hidden, np.int32(self.rows), np.int32(projection.width),
             np.int32(self.rows - depths), predecessors, successors, self.pairings],
        )  # fmt: skip

    def candidates(self, depths: int, ranks: int) -> Candidates:
        """What the last launches found of `depths` positions, `ranks` candidates below each node at most."""
        most = self.selector.spec.top_k
        ids = self.ids[:depths, :most].cpu().numpy().astype(np.int64)
        log_probs = self.log_probs[:depths, :most].double().cpu().numpy()
        table = self.pairings.cpu().numpy().view(PAIRING).reshape(self.rows, PAIR_CANDIDATES, MAX_WIDTH)
        return Candidates(ids, log_probs, _Found(ids, table), min(ranks, MAX_WIDTH))


@dataclass(frozen=True, slots=True)
class _Found:
    """Implements `tree.Given` from a table: the best of each parent alone are possible."""

    ids: npt.NDArray[np.int64]
    table: npt.NDArray[np.void]

    def log_probs(self, depth: int, parent: int) -> npt.NDArray[np.float64]:
        above = int(np.flatnonzero(self.ids[depth - 1] == parent)[0]) if depth else 0
        out = np.full(self.ids.shape[1], -np.inf)
        for one in self.table[depth, above]:
            if one["slot"] >= 0:
                out[one["slot"]] = one["log_prob"]
        return out
