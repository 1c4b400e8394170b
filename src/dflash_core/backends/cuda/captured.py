"""Outputs of chosen target layers, recorded by every pass for whoever reads them: a drafter, or a caller."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dflash_core.backends.cuda.launch import At


class CapturedLayers:
    """The residual stream after `layers`, side by side: `rows` f32 (nodes of a tree, layers * hidden)."""

    def __init__(self, layers: Sequence[int], hidden: int, capacity: int, device: torch.device) -> None:
        self.layers, self._hidden = tuple(layers), hidden
        self.rows = self.room(capacity, device)

    @property
    def width(self) -> int:
        return len(self.layers) * self._hidden

    def room(self, capacity: int, device: torch.device) -> Tensor:
        """Rows for trees of `capacity` nodes."""
        return torch.zeros(capacity, self.width, device=device)

    def at(self, layer: int) -> At | None:
        """Where a layer's output goes in the first row; None for a layer that nobody reads."""
        return At(self.rows, self.layers.index(layer) * self._hidden) if layer in self.layers else None
