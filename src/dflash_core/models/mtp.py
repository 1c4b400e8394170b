"""An MTP head in plain torch: one more layer over the token after a position and the target's hidden state there.

Hidden states are those after the output norm, also the head's own: the output for one token is the input for the next.
Pairs in the cache are those of tokens 1, 2, ..., as in Hugging Face and vLLM: there is none for token 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dflash_core.arch.kinds import EMBEDDING, HEAD, NORM
from dflash_core.config import MtpConfig
from dflash_core.models.attention import Attention
from dflash_core.models.block import Block
from dflash_core.models.kv_cache import KVCache
from dflash_core.models.matrix import Matrix, Weights
from dflash_core.models.norm import rms_norm
from dflash_core.models.rows import Rows
from dflash_core.models.target import TargetModel


class Mtp:
    """A head; tensors that it lacks are those of `target`. A pair is (token at p + 1, hidden of p); caches hold
    pairs."""

    def __init__(self, weights: Weights, config: MtpConfig, target: TargetModel) -> None:
        self.config, self.target = config, target
        prefix, nextn = config.prefix, config.nextn
        self.eh_proj: Matrix = weights.matrix(prefix + "nextn.eh_proj.weight")
        self.enorm = weights.vector(prefix + "nextn.enorm.weight")
        self.hnorm = weights.vector(prefix + "nextn.hnorm.weight")
        self.blk = Block(weights, config.index, config.layer, config.rms_eps)
        self.norm = weights.vector(prefix + NORM) if nextn.own_norm else target.output_norm
        self.embedding: Matrix = weights.matrix(prefix + EMBEDDING) if nextn.own_embedding else target.token_embd
        self.head: Matrix = weights.matrix(prefix + HEAD) if nextn.own_head else target.output

    def new_state(self) -> KVCache:
        state = self.blk.new_state()
        assert isinstance(state, KVCache), "an MTP block is attention"
        return state

    def hidden(self, outputs: Tensor) -> Tensor:
        """Outputs of the target's last layer (n, hidden) as they go into its head."""
        return rms_norm(outputs, self.target.output_norm, self.config.rms_eps)

    def join(self, tokens: Sequence[int], hidden: Tensor) -> Tensor:
        """Pairs as rows of the residual (n, hidden)."""
        eps = self.config.rms_eps
        token = rms_norm(self.embedding.rows(tokens), self.enorm, eps)
        return self.eh_proj(torch.cat((token, rms_norm(hidden, self.hnorm, eps)), dim=-1))

    def remember(self, tokens: Sequence[int], hidden: Tensor, length: int, cache: KVCache) -> None:
        """Write pairs after `length` others. Keys and values of a pair depend only on that pair."""
        mixer = self.blk.mixer
        assert isinstance(mixer, Attention), "an MTP block is attention"
        x = self.blk.attn_norm(self.join(tokens, hidden))
        positions = torch.arange(length, length + len(tokens))
        cache.store(length, *mixer.keys_values(x, mixer.rotary.angles(positions)))

    def forward(self, tokens: Sequence[int], hidden: Tensor, length: int, cache: KVCache) -> Tensor:
        """Pairs after `length` others, each seeing those before it -> its own hidden (n, hidden), normed.

        The pairs stay in the cache until others overwrite them.
        """
        rows = Rows.of(tokens, range(-1, len(tokens) - 1), length)
        return rms_norm(self.blk(self.join(tokens, hidden), rows, cache), self.norm, self.config.rms_eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden rows of `forward` (n, hidden) -> logits (n, vocab)."""
        return self.head(hidden)
