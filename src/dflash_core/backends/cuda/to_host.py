"""Copies of a card's tensors in main memory."""

from __future__ import annotations

import torch
from torch import Tensor


def to_host(tensor: Tensor) -> Tensor:
    """A copy in host memory: of a card's in pages that it reaches by itself, which copies several times as fast."""
    out = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    return out.copy_(tensor)
