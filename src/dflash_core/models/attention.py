"""Softmax attention over cached keys and values."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from dflash_core.arch import kinds
from dflash_core.attention_window import AttentionWindow
from dflash_core.cache_types import CachePair
from dflash_core.models.kv_cache import KVCache, RecentCache
from dflash_core.models.matrix import Matrix, Weights
from dflash_core.models.norm import Rotary, rms_norm
from dflash_core.models.rows import Inputs, LayerState


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, sinks: Tensor | None = None) -> Tensor:
    """Softmax attention with grouped heads: q (heads, n, d), k and v (kv_heads, m, d), mask (n, m) True = visible.

    Query head h reads kv head h // (heads / kv_heads). scale: of the products of queries and keys. sinks (heads,): the
    score of a further key of each head that has no value. Returns (n, heads * d).
    """
    heads, n, d = q.shape
    kv_heads = k.shape[0]
    # Heads of one group are stacked as rows: one matrix product per kv head.
    scores = q.reshape(kv_heads, -1, d) @ k.transpose(1, 2) * scale
    if mask is not None:
        scores = scores.view(kv_heads, heads // kv_heads, n, -1).masked_fill(~mask, -math.inf).view(scores.shape)
    if sinks is not None:
        column = sinks.view(kv_heads, -1, 1).expand(-1, -1, n).reshape(kv_heads, -1, 1)
        shares = torch.softmax(torch.cat((scores, column), dim=-1), dim=-1)[..., :-1]
    else:
        shares = torch.softmax(scores, dim=-1)
    return (shares @ v).view(heads, n, d).transpose(0, 1).reshape(n, heads * d)


class Attention:
    """An attention layer: grouped heads, rotary positions, and what its spec names besides."""

    def __init__(self, weights: Weights, prefix: str, spec: kinds.Attention) -> None:
        self.spec, self.dtype, self.scale = spec, weights.dtype, spec.score_scale

        def project(name: str) -> Matrix:
            return weights.projection(prefix + name, name in spec.biases)

        def vector(name: str, present: bool) -> Tensor | None:
            return weights.vector(prefix + name) if present else None

        own = spec.kv_from is None
        self.attn_q = project("attn_q")  # with sigmoid gates, per head: query rows, gate rows
        self.attn_k = project("attn_k") if own else None
        self.attn_v = project("attn_v") if own and not spec.key_is_value else None
        self.attn_output = project("attn_output")
        self.attn_gate = weights.matrix(prefix + "attn_gate.weight") if spec.gate == "softplus" else None
        self.attn_q_norm = vector("attn_q_norm.weight", spec.qk_norm)
        self.attn_k_norm = vector("attn_k_norm.weight", spec.qk_norm and own)
        self.attn_sinks = vector("attn_sinks.weight", spec.sinks)
        factors = weights.vector(kinds.ROPE_FACTORS) if spec.rope_factors else None
        self.rotary = Rotary(spec.rotary, spec.rope_base, weights.dtype, spec.scaling, factors)

    def new_state(self, kv: CachePair | None = None) -> LayerState:
        return self.new_cache(kv) if self.spec.kv_from is None else LayerState()

    def new_cache(self, kv: CachePair | None = None) -> KVCache:
        """An empty cache of keys and values of the type `kv`; None: floats of the weights' own type."""
        if kv is not None and kv.recent:
            return RecentCache(self.spec.kv_heads, self.spec.head_dim, self.dtype, kv)
        return KVCache(self.spec.kv_heads, self.spec.head_dim, self.dtype, kv)

    def queries(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor | None]:
        """Rows (n, hidden) -> queries (heads, n, head_dim), normed and rotated, and the factors of the output,
        (n, heads, head_dim) or (n, heads, 1); None for none."""
        c, n = self.spec, len(x)
        rows, gate = self.attn_q(x).view(n, c.heads, -1, c.head_dim), None
        if c.gate == "sigmoid":
            gate = torch.sigmoid(rows[:, :, 1])
        elif self.attn_gate is not None:
            gate = F.softplus(self.attn_gate(x))[..., None]
        return self.rotary(self._normed(rows[:, :, 0].transpose(0, 1), self.attn_q_norm), angles), gate

    def keys_values(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Rows (n, hidden) -> keys, normed and rotated, and values, each (kv_heads, n, head_dim)."""
        c, n = self.spec, len(x)
        assert self.attn_k is not None, "keys of a layer that reads those of another"
        k = self.attn_k(x).view(n, c.kv_heads, -1).transpose(0, 1)
        v = k if self.attn_v is None else self.attn_v(x).view(n, c.kv_heads, -1).transpose(0, 1)
        return self.rotary(self._normed(k, self.attn_k_norm), angles), rms_norm(v, None, c.eps) if c.v_norm else v

    def _normed(self, x: Tensor, weight: Tensor | None) -> Tensor:
        return x if weight is None else rms_norm(x, weight, self.spec.eps)

    def output(self, mixed: Tensor, gate: Tensor | None) -> Tensor:
        """What attention gives (n, heads * head_dim) -> rows (n, hidden). `gate`: as `queries` returned it."""
        if gate is not None:
            mixed = (mixed.view(len(mixed), self.spec.heads, -1) * gate).flatten(1)
        return self.attn_output(mixed)

    def __call__(self, x: Tensor, inputs: Inputs) -> Tensor:
        rows, cache = inputs.rows, inputs.state
        assert isinstance(cache, KVCache), "attention without a cache"
        angles = self.rotary.angles(rows.positions)
        q, gate = self.queries(x, angles)
        if self.spec.query_growth is not None:
            growth, length = self.spec.query_growth
            q = q * (1 + growth * torch.log1p((rows.positions // length).to(q.dtype)))[:, None]
        window = AttentionWindow(self.spec.window) if self.spec.window else rows.window
        if self.spec.kv_from is None:
            cache.store(rows.length, *self.keys_values(x, angles))
        masked = len(x) > 1 or window.size
        visible = rows.visible(window) if masked else None
        q, mixed = cache.queries(q), x.new_empty(len(x), self.spec.heads * self.spec.head_dim)
        for some, keys, values in cache.parts(rows.seen(window), rows.positions):
            seen = None if visible is None else visible[some]
            mixed[some] = attend(q[:, some], keys, values, seen, self.scale, self.attn_sinks)
        return self.output(mixed, gate)
