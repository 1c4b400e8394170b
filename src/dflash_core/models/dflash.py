"""The DFlash drafter in plain torch: one bidirectional pass denoises a block of masks behind the committed context.

It has no embedding and no head of its own; it borrows the target's. Attributes carry the names of the `dflash` GGUF
flavour. Formulas: z-lab's DFlash (Chen et al., 2026).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dflash_core.arch import kinds
from dflash_core.config import DraftConfig
from dflash_core.models.attention import Attention, attend
from dflash_core.models.feed_forward import SwiGLU
from dflash_core.models.kv_cache import DEFAULT_CACHE, KVCache
from dflash_core.models.matrix import Matrix, Weights
from dflash_core.models.norm import rms_norm


class DraftBlock:
    """One layer. Context keys and values come from the fused target features, which are not layer-normed."""

    def __init__(self, weights: Weights, index: int, config: DraftConfig) -> None:
        prefix, spec = f"blk.{index}.", config.layers[index]
        assert isinstance(spec.mixer, kinds.Attention), "a DFlash layer is attention"
        assert isinstance(spec.ffn, kinds.SwiGLU), "a DFlash layer has a SwiGLU"
        self.eps, self.window, self.causal = config.rms_eps, spec.mixer.window, config.causal[index]
        self.attn_norm = weights.vector(prefix + "attn_norm.weight")
        self.mixer = Attention(weights, prefix, spec.mixer, DEFAULT_CACHE)
        self.ffn_norm = weights.vector(prefix + spec.ffn_norm)
        self.ffn = SwiGLU(weights, prefix, spec.ffn)

    def keys_values(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Rows (n, hidden) at `positions` -> keys (normed, rotated) and values, each (kv_heads, n, head_dim)."""
        return self.mixer.keys_values(x, self.mixer.rotary.angles(positions))

    def __call__(self, h: Tensor, length: int, cache: KVCache, window: int) -> Tensor:
        """Noise rows `h` (block, hidden) at positions length.. over the cached context; `window` 0 sees all of it."""
        x = rms_norm(h, self.attn_norm, self.eps)
        positions = torch.arange(length, length + len(h))
        q, _ = self.mixer.queries(x, self.mixer.rotary.angles(positions))
        k, v = cache.write(length, *self.keys_values(x, positions))
        # Rows that no query may see need not be read: the first query's view reaches back the furthest.
        first = max(0, length - window if window else 0, length - self.window + 1 if self.window else 0)
        h = h + self.mixer.attn_output(attend(q, k[:, first:], v[:, first:], self._visible(positions, first, length)))
        return h + self.ffn(rms_norm(h, self.ffn_norm, self.eps))

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
        return [block.mixer.new_state() for block in self.blk]

    def update_cache(self, features: Tensor, start: int, states: Sequence[KVCache]) -> None:
        """Add context: features (n, captured layers * hidden) of positions start.. as every layer's keys and values."""
        fused = rms_norm(self.fc(features), self.enc_output_norm, self.config.rms_eps)
        positions = torch.arange(start, start + len(features))
        for block, cache in zip(self.blk, states, strict=True):
            cache.write(start, *block.keys_values(fused, positions))

    def forward(self, noise: Tensor, length: int, states: Sequence[KVCache], window: int = 0) -> Tensor:
        """Embedded block [root, mask, ...] (block, hidden) at positions length.. -> hidden rows for the target's head.

        The context of `length` positions must be in the cache; `window` limits how far back all layers look.
        """
        h = noise
        for block, cache in zip(self.blk, states, strict=True):
            h = block(h, length, cache, window)
        return rms_norm(h, self.output_norm, self.config.rms_eps)
