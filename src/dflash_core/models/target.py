"""A target in plain torch, built from its spec: attributes have the GGUF tensor names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from dflash_core.arch import kinds
from dflash_core.arch.spec import EMBEDDING, LayerSpec, ModelSpec
from dflash_core.cache_types import CachePair
from dflash_core.models.attention import Attention
from dflash_core.models.delta_net import GatedDeltaNet
from dflash_core.models.experts import Experts
from dflash_core.models.feed_forward import SwiGLU
from dflash_core.models.matrix import Matrix, Weights
from dflash_core.models.norm import rms_norm
from dflash_core.models.rows import LayerState, Rows

# The class of each kind of layer: called with the weights, a prefix of their names, and the spec.
MIXERS: dict[type, Callable[[Weights, str, Any], Any]] = {kinds.Attention: Attention, kinds.DeltaNet: GatedDeltaNet}
FEED_FORWARDS: dict[type, Callable[[Weights, str, Any], Callable[[Tensor], Tensor]]] = {
    kinds.SwiGLU: SwiGLU,
    kinds.Experts: Experts,
}


class Block:
    """One layer: h += mixer(norm h); h += ffn(norm h)."""

    def __init__(self, weights: Weights, index: int, spec: LayerSpec, eps: float) -> None:
        prefix = f"blk.{index}."
        self.spec, self.eps = spec, eps
        self.attn_norm = weights.vector(prefix + "attn_norm.weight")
        self.mixer = MIXERS[type(spec.mixer)](weights, prefix, spec.mixer)
        self.ffn_norm = weights.vector(prefix + spec.ffn_norm)
        self.ffn = FEED_FORWARDS[type(spec.ffn)](weights, prefix, spec.ffn)

    def new_state(self, kv: CachePair | None = None) -> LayerState:
        state: LayerState = self.mixer.new_state(kv)
        return state

    def __call__(self, h: Tensor, rows: Rows, state: LayerState) -> Tensor:
        h = h + self.mixer(rms_norm(h, self.attn_norm, self.eps), rows, state)
        return h + self.ffn(rms_norm(h, self.ffn_norm, self.eps))


class TargetModel:
    """The whole target. Weights only; the state of a conversation is in the list of layer states."""

    def __init__(
        self,
        weights: Weights,
        spec: ModelSpec,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.spec = spec
        self.token_embd: Matrix = weights.matrix("token_embd.weight")
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

    def forward(
        self, rows: Rows, states: Sequence[LayerState], captured: Sequence[int] = ()
    ) -> tuple[Tensor, list[Tensor]]:
        """Run rows after the committed states. Returns the final hidden rows (n, hidden) before `output_norm`, and
        the output of each layer in `captured` (n, hidden), in that order; EMBEDDING is what the first layer reads.
        Nothing is committed."""
        h = self.token_embd.rows(rows.tokens)
        outputs: dict[int, Tensor] = {EMBEDDING: h}
        for index, (block, state) in enumerate(zip(self.blk, states, strict=True)):
            h = block(h, rows, state)
            if index in captured:
                outputs[index] = h
        return h, [outputs[index] for index in captured]

    def logits(self, h: Tensor) -> Tensor:
        """Final hidden rows (n, hidden) -> logits (n, vocab)."""
        return self.output(rms_norm(h, self.output_norm, self.spec.rms_eps))
