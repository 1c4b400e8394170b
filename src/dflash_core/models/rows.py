"""The rows of one pass, and the interface of a layer's state over a sequence.

Every pass runs a set of rows that follow the committed context as a tree: a prefill chunk is a chain of rows,
a verify pass the root and its drafts, plain decoding only the root. One code path serves all three.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from dflash_core.attention_window import EVERYTHING, AttentionWindow
from dflash_core.tree import ancestors, conv_taps


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one pass. `length` positions are committed; row i sits at position length + depth of i.

    tokens: n ids; parents: n rows, -1 for the root; positions (n,); ancestors (n, n) bool, self included, and its
    complement `unrelated`; `sums` (n, n) float64, which sums over a row's ancestors. `window`: the window of
    full-attention layers.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    length: int
    positions: Tensor
    ancestors: Tensor
    unrelated: Tensor
    sums: Tensor
    window: AttentionWindow = EVERYTHING
    _taps: dict[int, Tensor] = field(default_factory=dict)

    @staticmethod
    def of(tokens: Sequence[int], parents: Sequence[int], length: int, window: AttentionWindow = EVERYTHING) -> Rows:
        mask = torch.from_numpy(ancestors(parents))
        positions = length + mask.sum(dim=1) - 1
        return Rows(tuple(tokens), tuple(parents), length, positions, mask, ~mask, mask.T.double(), window)

    def taps(self, kernel: int) -> Tensor:
        """The inputs of a causal convolution over `kernel` inputs for each row, (n, kernel): see tree.conv_taps."""
        if kernel not in self._taps:
            self._taps[kernel] = torch.from_numpy(conv_taps(self.parents, kernel))
        return self._taps[kernel]

    def seen(self, window: AttentionWindow) -> list[slice]:
        """Runs of the length + n slots that cover everything that some row sees under `window`."""
        return window.runs(self.length, self.length + len(self.tokens))

    def visible(self, window: AttentionWindow = EVERYTHING) -> Tensor:
        """Attention mask (n, slots of `seen`): committed positions, ancestors, self, limited by `window`."""
        mask = F.pad(self.ancestors, (self.length, 0), value=True)
        if not window.size:
            return mask
        keys = torch.cat((torch.arange(self.length), self.positions))
        mask &= (self.positions[:, None] - keys < window.size) | (keys < window.sinks)
        return torch.cat([mask[:, run] for run in self.seen(window)], dim=1)


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a part of a layer may read beside its own normed rows: the pass, the residual stream `h` (n, hidden), the
    state of the layer whose keys and values it uses, and what is `given` to the layer for each token, (n, width)."""

    rows: Rows
    h: Tensor
    state: LayerState
    given: Tensor | None = None


class LayerState:
    """The state of one layer over one sequence; as it stands here, of a layer that stores nothing. What lies after the
    committed length is never read: to go back, a state is only truncated, unless it says otherwise."""

    component = "target KV"
    """Its name in the memory breakdown."""

    @property
    def nbytes(self) -> int:
        return 0

    def commit(self, length: int, path: Sequence[int]) -> None:
        """Commit the rows `path` of the last pass after `length` committed positions."""

    def reaches(self, length: int) -> bool:
        """Whether the state can return to its first `length` positions without a checkpoint."""
        return True

    def tensors(self, length: int) -> tuple[Tensor, ...]:
        """Copies of what cannot be rewound of the state after `length` committed positions, in its stored form."""
        return ()

    def load(self, length: int, tensors: Iterator[Tensor]) -> None:
        """Return to `length` positions: `tensors` as the method of that name returned them."""

    def positions(self, begin: int, end: int) -> tuple[Tensor, ...]:
        """Copies of the state of the committed positions begin..end."""
        return ()

    def put(self, begin: int, rows: Iterator[Tensor]) -> None:
        """Restore the tensors that `positions` returned, from position `begin` on."""
