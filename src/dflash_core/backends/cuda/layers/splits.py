"""Scratch memory of split attention."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dflash_core.backends.cuda.layers.split_attention import HeadShape, SplitOrder
from dflash_core.backends.cuda.products import Arena, TensorSpec
from dflash_core.backends.cuda.state import PASS_ROWS


class Splits:
    """Partial results of split attention for the widest pass, carved from `arena`, whose size includes `pieces`."""

    def __init__(self, order: SplitOrder, heads: HeadShape, arena: Arena) -> None:
        self.order = order
        self.out, self.stats, self.q = arena.carve(*self.pieces(order, heads))

    @staticmethod
    def pieces(order: SplitOrder, heads: HeadShape) -> Sequence[TensorSpec]:
        """Partial sums, softmax statistics and queries."""
        rows = heads.kv_heads * heads.packed_rows(PASS_ROWS)
        sizes = order.parts * rows * heads.head_dim, order.parts * rows * 2, rows * heads.head_dim
        return [((size,), dtype) for size, dtype in zip(sizes, (torch.float32, torch.float32, torch.float16))]
