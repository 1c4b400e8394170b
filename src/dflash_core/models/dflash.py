"""Block drafters in plain torch: one bidirectional pass denoises a block of masks after the committed context.

DFlash uses the embedding and head of its target. DFlash 2 adds convolutions over the block and a selector; DSpark has
its own embedding, head and Markov head. Attributes have the tensor names of the `dflash` GGUF flavour.
Formulas: z-lab's DFlash (Chen et al., 2026).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dflash_core.arch import kinds
from dflash_core.cache_types import CachePair
from dflash_core.config import DraftConfig, draft_tokens
from dflash_core.models.attention import Attention, attend
from dflash_core.models.draft_heads import Convolution, MarkovHead, Selector, best
from dflash_core.models.feed_forward import SwiGLU
from dflash_core.models.kv_cache import KVCache
from dflash_core.models.matrix import Matrix, Weights
from dflash_core.models.norm import rms_norm
from dflash_core.pair_scores import PairScores
from dflash_core.tree import Candidates, largest

MARKOV_TOP_K = 16
"""The tokens of a position from which a Markov head's tree chooses."""


def tap_norms(config: DraftConfig, vector: Callable[[str], Tensor]) -> Tensor | None:
    """The norms of the captured layers, (layers, hidden), of a drafter that has them. `vector`: reads a tensor."""
    if not config.tap_norms:
        return None
    return torch.cat([vector(name).view(-1, config.embedding_length) for name in config.tap_norms])


class DraftBlock:
    """One layer. Context keys and values come from the fused target features, which are not layer-normed."""

    def __init__(self, weights: Weights, index: int, config: DraftConfig) -> None:
        prefix, spec = f"blk.{index}.", config.layers[index]
        assert isinstance(spec.mixer, kinds.Attention), "a DFlash layer is attention"
        assert isinstance(spec.ffn, kinds.SwiGLU), "a DFlash layer has a SwiGLU"
        self.eps, self.window, self.causal = config.rms_eps, spec.mixer.window, config.causal[index]
        self.attn_norm = weights.vector(prefix + "attn_norm.weight")
        self.mixer = Attention(weights, prefix, spec.mixer)
        self.ffn_norm = weights.vector(prefix + spec.ffn_norm)
        self.ffn = SwiGLU(weights, prefix, spec.ffn)
        self.attn_conv = Convolution(weights, prefix + "attn", config.heads.conv) if config.heads.conv else None
        self.ffn_conv = Convolution(weights, prefix + "ffn", config.heads.conv) if config.heads.conv else None

    def keys_values(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Rows (n, hidden) at `positions` -> keys (normed, rotated) and values, each (kv_heads, n, head_dim)."""
        return self.mixer.keys_values(x, self.mixer.rotary.angles(positions))

    def __call__(self, h: Tensor, length: int, cache: KVCache, window: int) -> Tensor:
        """Noise rows `h` (block, hidden) at positions length.. over the cached context; `window` 0 sees all of it."""
        positions = torch.arange(length, length + len(h))

        def attention(x: Tensor) -> Tensor:
            q, gate = self.mixer.queries(x, self.mixer.rotary.angles(positions))
            cache.store(length, *self.keys_values(x, positions))
            # Rows that no query sees need not be read: the first query sees the furthest back.
            first = max(0, length - window if window else 0, length - self.window + 1 if self.window else 0)
            k, v = cache.read([slice(first, length + len(h))])
            mixed = attend(cache.queries(q), k, v, self._visible(positions, first, length), self.mixer.scale)
            return self.mixer.output(mixed, gate)

        parts = (self.attn_norm, self.attn_conv, attention), (self.ffn_norm, self.ffn_conv, self.ffn)
        for norm, conv, part in parts:
            x = rms_norm(h, norm, self.eps)
            h = h + (part(x) if conv is None else conv(x, part))
        return h

    def _visible(self, queries: Tensor, first: int, length: int) -> Tensor | None:
        if not (self.causal or self.window):
            return None
        keys = torch.arange(first, length + len(queries))
        distance = queries[:, None] - keys[None, :]
        visible = torch.ones_like(distance, dtype=torch.bool)
        if self.causal:
            visible &= distance >= 0
        if self.window:
            visible &= distance.abs() < self.window
        return visible


class DFlash:
    def __init__(self, weights: Weights, config: DraftConfig) -> None:
        self.config = config
        self.fc: Matrix = weights.matrix("fc.weight")
        self.enc_output_norm = weights.vector("enc.output_norm.weight")
        self.aux_norm = tap_norms(config, weights.vector)
        self.blk = [DraftBlock(weights, index, config) for index in range(config.block_count)]
        self.output_norm = weights.vector("output_norm.weight")
        self.token_embd = weights.matrix("token_embd.weight") if config.heads.own_embedding else None
        self.output = weights.matrix("output.weight") if config.heads.own_head else None
        self.d2t = torch.from_numpy(draft_tokens(config, weights.file)) if config.heads.draft_vocab else None
        self.selector = Selector(weights, config.heads.selector) if config.heads.selector else None
        self.markov = MarkovHead(weights, config.heads.markov) if config.heads.markov else None

    def new_states(self, kv: CachePair | None = None) -> list[KVCache]:
        """Caches of an empty context. `kv`: the cache type of layers that see all of it; layers with a window use f16
        then."""
        return [block.mixer.new_cache(kv.windowed if kv and block.window else kv) for block in self.blk]

    def update_cache(self, features: Tensor, start: int, states: Sequence[KVCache]) -> None:
        """Add context: features (n, captured layers * hidden) of positions start.. as every layer's keys and values."""
        eps = self.config.rms_eps
        if self.aux_norm is not None:
            features = rms_norm(features.view(len(features), *self.aux_norm.shape), self.aux_norm, eps).flatten(1)
        fused = rms_norm(self.fc(features), self.enc_output_norm, eps)
        positions = torch.arange(start, start + len(features))
        for block, cache in zip(self.blk, states, strict=True):
            context = fused if self.aux_norm is None else rms_norm(fused, block.attn_norm, eps)
            cache.store(start, *block.keys_values(context, positions))

    def forward(self, noise: Tensor, length: int, states: Sequence[KVCache], window: int = 0) -> Tensor:
        """Embedded block [root, mask, ...] (block, hidden) at positions length.. -> hidden rows for the target's head.

        The context of `length` positions must be in the cache; `window` limits how far back all layers see.
        """
        h = noise
        for block, cache in zip(self.blk, states, strict=True):
            h = block(h, length, cache, window)
        return rms_norm(h, self.output_norm, self.config.rms_eps)

    def embed(self, block: Sequence[int], embedding: Matrix) -> Tensor:
        """Tokens of a block as noise rows (block, hidden); `embedding`: the target's, where it has none of its own."""
        rows = (self.token_embd or embedding).rows(block)
        return rows if self.config.heads.embedding_scale == 1 else rows * self.config.heads.embedding_scale

    def logits(self, hidden: Tensor, head: Matrix) -> Tensor:
        """Hidden rows of `forward` (n, hidden) -> scores of its own tokens (n, draft vocab).

        `head`: the target's, where it has none of its own.
        """
        logits = (self.output or head)(hidden)
        if self.config.heads.logit_scale != 1:
            logits = logits * self.config.heads.logit_scale
        cap = self.config.heads.softcap
        return torch.tanh(logits / cap) * cap if cap else logits

    def spread(self, logits: Tensor, vocab: int) -> Tensor:
        """Scores of its own tokens (n, draft vocab) as those of the target's (n, vocab): -inf for all others."""
        if self.d2t is None:
            return logits
        full = logits.new_full((len(logits), vocab), -math.inf)
        full[:, self.d2t] = logits
        return full

    def _biased(self, root: int, logits: Tensor, position: int) -> list[Tensor]:
        """Rows (vocab,) with what the Markov head adds after the best token of the row before. Raises as `best`."""
        assert self.markov is not None, "a bias without a Markov head"
        rows, token = list[Tensor](), root
        for row in logits:
            rows.append(row + self.spread(self.markov.bias(token)[None], len(row))[0])
            token = best(rows[-1], position)
        return rows

    @torch.inference_mode()
    def conditional(
        self, root: int, hidden: Tensor, logits: Tensor, position: int, temperature: float, ranks: int
    ) -> Candidates:
        """The best tokens of each depth after `root`, with scores given the parent token.

        `hidden` (depths, hidden) of `forward`, `logits` (depths, vocab) of `spread`; `position`: the number of tokens
        before `root`, for messages. Raises NumericsError where the best is NaN.

        A selector's are the best by their own scores, a Markov head's the best along its greedy path.
        """
        scaled = logits.double() / temperature
        log_probs = scaled.log_softmax(-1).numpy()
        if self.selector is not None:
            ids = np.stack([largest(row, self.selector.top_k) for row in log_probs]).astype(np.int64)
            factors = self.selector.factors(hidden, ids)
        else:
            assert self.markov is not None, "scores by the token above without a head for them"
            count = min(MARKOV_TOP_K, self.config.heads.draft_vocab or logits.shape[-1])
            biased = [row.double().numpy() for row in self._biased(root, logits, position)]
            ids = np.stack([largest(row, count) for row in biased]).astype(np.int64)
            order = np.argsort(-np.take_along_axis(log_probs, ids, -1), axis=-1, kind="stable")
            ids = np.take_along_axis(ids, order, -1)
            factors = self.markov.factors(hidden, self._own(ids))
        marginal = np.take_along_axis(log_probs, ids, axis=-1)
        return Candidates(ids, marginal, PairScores(marginal, factors, temperature, position), ranks)

    def _own(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The target's tokens as rows of the drafter's own head."""
        if self.d2t is None:
            return ids
        order = self.d2t.numpy().argsort()
        return order[np.searchsorted(self.d2t.numpy(), ids, sorter=order)]
