"""A target in plain torch, built from its spec: attributes have the GGUF tensor names."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dflash_core.arch.kinds import Attention
from dflash_core.arch.spec import EMBEDDING, ModelSpec
from dflash_core.cache_types import CachePair
from dflash_core.models.block import Block
from dflash_core.models.matrix import Matrix, Weights
from dflash_core.models.norm import rms_norm
from dflash_core.models.rows import LayerState, Rows


class PerLayerEmbedding:
    """What tokens give to every layer: a row of an embedding and a projection of the model's own, see `ModelSpec`."""

    def __init__(self, weights: Weights, spec: ModelSpec) -> None:
        self.spec, self.width = spec, spec.per_layer_input
        self.per_layer_token_embd: Matrix = weights.matrix("per_layer_token_embd.weight")
        self.per_layer_model_proj: Matrix = weights.matrix("per_layer_model_proj.weight")
        self.per_layer_proj_norm = weights.vector("per_layer_proj_norm.weight")

    def __call__(self, tokens: Sequence[int], h: Tensor) -> Tensor:
        """Tokens and their scaled embeddings (n, hidden) -> (layers, n, width)."""
        n, layers = len(tokens), self.spec.block_count
        table = self.per_layer_token_embd.rows(tokens).view(n, layers, -1) * math.sqrt(self.width)
        projected = (self.per_layer_model_proj(h) / math.sqrt(h.shape[-1])).view(n, layers, -1)
        normed = rms_norm(projected, self.per_layer_proj_norm, self.spec.rms_eps)
        return ((table + normed) / math.sqrt(2)).transpose(0, 1)


class TargetModel:
    """The whole target. Weights only; the state of a conversation is in the list of layer states."""

    def __init__(self, weights: Weights, spec: ModelSpec, progress: Callable[[int, int], None] | None = None) -> None:
        self.spec = spec
        self.token_embd: Matrix = weights.matrix("token_embd.weight")
        self.per_layer = PerLayerEmbedding(weights, spec) if spec.per_layer_input else None
        self.blk: list[Block] = []
        for index, layer in enumerate(spec.layers):
            self.blk.append(Block(weights, index, layer, spec.rms_eps))
            if progress:
                progress(index + 1, spec.block_count)
        self.output_norm = weights.vector("output_norm.weight")
        self.output: Matrix = self.token_embd if spec.tied_output else weights.matrix("output.weight")

    def new_states(self, kv: CachePair | None = None) -> list[LayerState]:
        """The states of an empty sequence. `kv`: cache type; None: floats of the model's own type."""
        return [block.new_state(kv) for block in self.blk]

    def embed(self, tokens: Sequence[int]) -> Tensor:
        """What the first layer reads, (n, hidden)."""
        rows, scale = self.token_embd.rows(tokens), self.spec.embedding_scale
        return rows if scale == 1 else rows * scale

    def forward(
        self, rows: Rows, states: Sequence[LayerState], captured: Sequence[int] = ()
    ) -> tuple[Tensor, list[Tensor]]:
        """Run rows after the committed states. Returns the final hidden rows (n, hidden) before `output_norm`, and
        the output of each layer in `captured` (n, hidden), in that order; EMBEDDING is what the first layer reads.
        Nothing is committed."""
        h = self.embed(rows.tokens)
        given = self.given(rows.tokens, h)
        outputs: dict[int, Tensor] = {EMBEDDING: h}
        for index in range(len(self.blk)):
            h = self.layer(index, h, rows, states, given)
            if index in captured:
                outputs[index] = h
        return h, [outputs[index] for index in captured]

    def given(self, tokens: Sequence[int], h: Tensor) -> Tensor | None:
        """What tokens with the embeddings `h` (n, hidden) give to every layer, (layers, n, width); None for nothing."""
        return None if self.per_layer is None else self.per_layer(tokens, h)

    def layer(
        self, index: int, h: Tensor, rows: Rows, states: Sequence[LayerState], given: Tensor | None
    ) -> Tensor:  # fmt: skip
        """The residual stream (n, hidden) after layer `index`. `states`: of all layers; `given`: by `given`."""
        return self.blk[index](h, rows, states[self.state_of(index)], None if given is None else given[index])

    def state_of(self, index: int) -> int:
        """The layer whose state layer `index` uses."""
        mixer = self.spec.layers[index].mixer
        shared = mixer.kv_from if isinstance(mixer, Attention) else None
        return index if shared is None else shared

    def logits(self, h: Tensor) -> Tensor:
        """Final hidden rows (n, hidden) -> logits (n, vocab)."""
        spec = self.spec
        logits = self.output(rms_norm(h, self.output_norm, spec.rms_eps))
        if spec.logit_scale != 1:
            logits = logits * spec.logit_scale
        if spec.softcap:
            logits = torch.tanh(logits / spec.softcap) * spec.softcap
        if spec.suppressed:
            logits[:, list(spec.suppressed)] = -math.inf
        return logits
