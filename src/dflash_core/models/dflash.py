"""The DFlash drafter in plain torch: one bidirectional pass denoises a block of masks behind the committed context.

It has no embedding and no head of its own; it borrows the target's. Attributes carry the names of the `dflash` GGUF
flavour. Formulas: z-lab's DFlash (Chen et al., 2026).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dflash_core.config import DraftConfig
from dflash_core.models.layers import FeedForward, KVCache, Rotary, attend, rms_norm
from dflash_core.models.matrix import Matrix, Weights


class DraftBlock:
    """One layer. Context keys and values come from the fused target features, which are not layer-normed."""

    def __init__(self, weights: Weights, index: int, config: DraftConfig) -> None:
        prefix = f"blk.{index}."
        self.config = config
        self.window = config.sliding_window if config.sliding[index] else 0
        self.causal = config.causal[index]
        self.attn_norm = weights.vector(prefix + "attn_norm.weight")
        self.attn_q: Matrix = weights.matrix(prefix + "attn_q.weight")
        self.attn_k: Matrix = weights.matrix(prefix + "attn_k.weight")
        self.attn_v: Matrix = weights.matrix(prefix + "attn_v.weight")
        self.attn_output: Matrix = weights.matrix(prefix + "attn_output.weight")
        self.attn_q_norm = weights.vector(prefix + "attn_q_norm.weight")
        self.attn_k_norm = weights.vector(prefix + "attn_k_norm.weight")
        self.ffn_norm = weights.vector(prefix + "ffn_norm.weight")
        self.ffn = FeedForward(weights, prefix)
        self.rotary = Rotary(config.key_length, config.rope_freq_base, weights.dtype)

    def keys_values(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Rows (n, hidden) at `positions` -> keys (normed, rotated) and values, each (kv_heads, n, head_dim)."""
        c, n = self.config, len(x)
        k = self.attn_k(x).view(n, c.head_count_kv, -1).transpose(0, 1)
        v = self.attn_v(x).view(n, c.head_count_kv, -1).transpose(0, 1)
        return self.rotary(rms_norm(k, self.attn_k_norm, c.rms_eps), self.rotary.angles(positions)), v

    def __call__(self, h: Tensor, length: int, cache: KVCache, window: int) -> Tensor:
        """Noise rows `h` (block, hidden) at positions length.. over the cached context; `window` 0 sees all of it."""
        c, n = self.config, len(h)
        x = rms_norm(h, self.attn_norm, c.rms_eps)
        positions = torch.arange(length, length + n)
        q = self.attn_q(x).view(n, c.head_count, -1).transpose(0, 1)
        q = self.rotary(rms_norm(q, self.attn_q_norm, c.rms_eps), self.rotary.angles(positions))
        k, v = cache.write(length, *self.keys_values(x, positions))
        # Rows that no query may see need not be read: the first query's view reaches back the furthest.
        first = max(0, length - window if window else 0, length - self.window + 1 if self.window else 0)
        out = attend(q, k[:, first:], v[:, first:], self._visible(positions, first, length))
        h = h + self.attn_output(out)
        return h + self.ffn(rms_norm(h, self.ffn_norm, c.rms_eps))

    def _visible(self, queries: Tensor, first: int, length: int) -> Tensor | None:
        if not (self.causal or self.window):
            return None
        keys = torch.arange(first, length + len(queries))
        behind = queries[:, None] - keys[None, :]
        visible = torch.ones_like(behind, dtype=torch.bool)
        if self.causal:
            visible &= behind >= 0
        if self.window:
            visible &= behind < self.window
        return visible


class DFlash:
    """The whole drafter."""

    def __init__(self, weights: Weights, config: DraftConfig) -> None:
        self.config = config
        self.fc: Matrix = weights.matrix("fc.weight")
        self.enc_output_norm = weights.vector("enc.output_norm.weight")
        self.blk = [DraftBlock(weights, index, config) for index in range(config.block_count)]
        self.output_norm = weights.vector("output_norm.weight")

    def new_states(self) -> list[KVCache]:
        c, dtype = self.config, self.output_norm.dtype
        return [KVCache(c.head_count_kv, c.key_length, dtype) for _ in self.blk]

    def absorb(self, features: Tensor, start: int, states: Sequence[KVCache]) -> None:
        """Add context: target features (n, taps * hidden) of positions start.. as keys and values of every layer."""
        fused = rms_norm(self.fc(features), self.enc_output_norm, self.config.rms_eps)
        positions = torch.arange(start, start + len(features))
        for block, cache in zip(self.blk, states, strict=True):
            cache.write(start, *block.keys_values(fused, positions))

    def forward(self, noise: Tensor, length: int, states: Sequence[KVCache], window: int = 0) -> Tensor:
        """Embedded block [root, mask, ...] (block, hidden) at positions length.. -> hidden rows for the target's head.

        The context of `length` positions must have been absorbed; `window` limits how far back all layers look.
        """
        h = noise
        for block, cache in zip(self.blk, states, strict=True):
            h = block(h, length, cache, window)
        return rms_norm(h, self.output_norm, self.config.rms_eps)
