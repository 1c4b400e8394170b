"""Attention of one token of every row to the columns of its document."""

from __future__ import annotations

import math

import torch
from torch import Tensor

BLOCK = 64
"""Columns that the kernel reads at a time."""


def attend(q: Tensor, keys: Tensor, values: Tensor, first: Tensor, at: Tensor) -> Tensor:
    """q (B, heads, D) over the columns first (B,) .. at (1,) of keys and values (B, kv_heads, S, D) -> (B, heads * D).

    On a card by a Triton kernel that reads these columns alone, so that its time follows the length of the documents.
    """
    if q.is_cuda:
        from .attention_kernel import launch  # Triton is there only with a card

        return launch(q, keys, values, first, at)
    return plain(q, keys, values, first, at)


def plain(q: Tensor, keys: Tensor, values: Tensor, first: Tensor, at: Tensor) -> Tensor:
    """The same in plain torch."""
    batch, heads, dim = q.shape
    column = torch.arange(keys.shape[2], device=q.device)
    visible = (column >= first[:, None]) & (column <= at)
    grouped = q.view(batch, keys.shape[1], -1, dim)
    scores = (grouped @ keys.transpose(2, 3)).float() * dim**-0.5
    p = torch.where(visible[:, None, None], scores, -math.inf).softmax(-1).to(values.dtype)
    return (p @ values).reshape(batch, heads * dim)
