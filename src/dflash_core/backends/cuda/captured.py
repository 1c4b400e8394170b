"""Outputs of chosen target layers, recorded by every pass for a drafter or a caller."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dflash_core.backends.cuda.launch import At
from dflash_core.backends.cuda.products import Arena, TensorSpec


class CapturedLayers:
    """The residual stream after each of `layers`, concatenated: `rows` f32 (nodes of a tree, layers * hidden).

    They are f32, although DFlash keeps accepted rows as f16, because an MTP head and `features` need f32. Another
    variant of the norm with f16 rows would save only 1.2 MB for 24 nodes of the 27B model.
    """

    def __init__(self, layers: Sequence[int], hidden: int, capacity: int, own: Arena) -> None:
        """`own`: an arena of zeros whose size includes `pieces`."""
        self.layers, self._hidden = tuple(layers), hidden
        (self.rows,) = own.carve(*self.pieces(layers, hidden, capacity))

    @staticmethod
    def pieces(layers: Sequence[int], hidden: int, capacity: int) -> Sequence[TensorSpec]:
        """The memory of rows for trees of `capacity` nodes."""
        return [((capacity, len(layers) * hidden), torch.float32)]

    @property
    def width(self) -> int:
        return len(self.layers) * self._hidden

    def at(self, layer: int) -> At | None:
        """The place of a layer's output in the first row; None for a layer that is not captured."""
        return At(self.rows, self.layers.index(layer) * self._hidden) if layer in self.layers else None
