"""Softmax attention over cached keys and values."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dflash_core.arch import kinds
from dflash_core.attention_window import AttentionWindow
from dflash_core.cache_types import CachePair
from dflash_core.models.kv_cache import KVCache
from dflash_core.models.matrix import Matrix, Weights
from dflash_core.models.norm import Rotary, rms_norm
from dflash_core.models.rows import Rows


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax attention with grouped heads: q (heads, n, d), k and v (kv_heads, m, d), mask (n, m) True = visible.

    Query head h reads kv head h // (heads / kv_heads). Returns (n, heads * d).
    """
    heads, n, d = q.shape
    kv_heads = k.shape[0]
    # Heads of one group are stacked as rows: one matrix product per kv head.
    scores = q.reshape(kv_heads, -1, d) @ k.transpose(1, 2) / math.sqrt(d)
    if mask is not None:
        scores = scores.view(kv_heads, heads // kv_heads, n, -1).masked_fill(~mask, -math.inf).view(scores.shape)
    out = torch.softmax(scores, dim=-1) @ v
    return out.view(heads, n, d).transpose(0, 1).reshape(n, heads * d)


class Attention:
    """An attention layer: q/k norms, partial rotary, grouped heads; where it has one, a sigmoid gate on the output."""

    def __init__(self, weights: Weights, prefix: str, spec: kinds.Attention) -> None:
        self.spec = spec
        self.attn_q: Matrix = weights.matrix(prefix + "attn_q.weight")  # with gates, per head: query rows, gate rows
        self.attn_k: Matrix = weights.matrix(prefix + "attn_k.weight")
        self.attn_v: Matrix = weights.matrix(prefix + "attn_v.weight")
        self.attn_output: Matrix = weights.matrix(prefix + "attn_output.weight")
        self.attn_q_norm = weights.vector(prefix + "attn_q_norm.weight")
        self.attn_k_norm = weights.vector(prefix + "attn_k_norm.weight")
        self.rotary = Rotary(spec.rotary, spec.rope_base, weights.dtype, spec.scaling)

    def new_state(self, kv: CachePair | None = None) -> KVCache:
        return KVCache(self.spec.kv_heads, self.spec.head_dim, self.attn_q_norm.dtype, kv)

    def queries(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor | None]:
        """Rows (n, hidden) -> queries (heads, n, head_dim), normed and rotated, and gates (n, heads * head_dim)."""
        c, n = self.spec, len(x)
        rows, gate = self.attn_q(x).view(n, c.heads, -1, c.head_dim), None
        if c.gated:
            gate = rows[:, :, 1].reshape(n, -1)
        return self.rotary(rms_norm(rows[:, :, 0].transpose(0, 1), self.attn_q_norm, c.eps), angles), gate

    def keys_values(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Rows (n, hidden) -> keys, normed and rotated, and values, each (kv_heads, n, head_dim)."""
        c, n = self.spec, len(x)
        k = self.attn_k(x).view(n, c.kv_heads, -1).transpose(0, 1)
        v = self.attn_v(x).view(n, c.kv_heads, -1).transpose(0, 1)
        return self.rotary(rms_norm(k, self.attn_k_norm, c.eps), angles), v

    def __call__(self, x: Tensor, rows: Rows, cache: KVCache) -> Tensor:
        angles = self.rotary.angles(rows.positions)
        q, gate = self.queries(x, angles)
        window = AttentionWindow(self.spec.window) if self.spec.window else rows.window
        cache.store(rows.length, *self.keys_values(x, angles))
        keys, values = cache.read(rows.seen(window))
        masked = len(x) > 1 or window.size
        out = attend(cache.queries(q), keys, values, rows.visible(window) if masked else None)
        return self.attn_output(out if gate is None else out * torch.sigmoid(gate))
