"""Outputs of chosen target layers, recorded by every pass for a drafter or a caller."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dflash_core.backends.cuda.launch import At
from dflash_core.backends.cuda.products import Arena, Wanted


class CapturedLayers:
    """The residual stream after `layers`, side by side: `rows` f32 (nodes of a tree, layers * hidden).

    Floats, though DFlash keeps accepted rows as halves: an MTP head and `features` take them whole, and a second form
    of the norm that writes them would save 1.2 MB for 24 nodes of the 27B model.
    """

    def __init__(self, layers: Sequence[int], hidden: int, capacity: int, own: Arena) -> None:
        """`own`: zeros, where `pieces` have been counted."""
        self.layers, self._hidden = tuple(layers), hidden
        (self.rows,) = own.carve(*self.pieces(layers, hidden, capacity))

    @staticmethod
    def pieces(layers: Sequence[int], hidden: int, capacity: int) -> Sequence[Wanted]:
        """Rows for trees of `capacity` nodes."""
        return [((capacity, len(layers) * hidden), torch.float32)]

    @property
    def width(self) -> int:
        return len(self.layers) * self._hidden

    def room(self, capacity: int) -> Tensor:
        """Rows of their own for trees of `capacity` nodes."""
        return torch.zeros(capacity, self.width, device=self.rows.device)

    def at(self, layer: int) -> At | None:
        """Where a layer's output is stored in the first row; None for a layer that is not read."""
        return At(self.rows, self.layers.index(layer) * self._hidden) if layer in self.layers else None
