"""Attention of a prompt's rows under a window: of keys and values only what some row sees is touched."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from dflash_core.attention_window import AttentionWindow

MOST_PAIRS = 4 << 20  # of rows and keys that one mask is made for: 4 MiB, and twice that in the library


def windowed_attention(
    q: Tensor, k: Tensor, v: Tensor, window: AttentionWindow, length: int, library: Sequence[SDPBackend]
) -> Tensor:
    """Queries (kv heads, group, n, head_dim) of positions length.., keys and values (kv heads, keys, head_dim) of
    `window.runs(length, length + n)` -> (kv heads, group, n, head_dim)."""
    group, n = q.shape[1:3]
    runs = window.runs(length, length + n)
    keys = torch.cat([torch.arange(run.start, run.stop, device=q.device) for run in runs])
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    k, v = (rows[:, None].expand(-1, group, -1, -1) for rows in (k, v))
    step = max(MOST_PAIRS // len(keys), 1)
    for begin in range(0, n, step):
        some = q[:, :, begin : begin + step]
        behind = torch.arange(length + begin, length + begin + some.shape[2], device=q.device)[:, None] - keys
        mask = (behind >= 0) & ((behind < window.size) | (keys < window.sinks))
        with sdpa_kernel(list(library)):
            out[:, :, begin : begin + step] = scaled_dot_product_attention(some, k, v, attn_mask=mask)
    return out
