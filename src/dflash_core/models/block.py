"""A layer in plain torch: its parts and norms in the order of its spec."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from dflash_core.arch import kinds, spec
from dflash_core.cache_types import CachePair
from dflash_core.models.attention import Attention
from dflash_core.models.delta_net import GatedDeltaNet
from dflash_core.models.feed_forward import Experts, PerLayerInput, SwiGLU
from dflash_core.models.matrix import Weights
from dflash_core.models.norm import rms_norm
from dflash_core.models.rows import Inputs, LayerState, Rows

# The class of each kind of part: called with the weights, a prefix of their names, and the spec; then with the normed
# rows (n, hidden) and `Inputs`.
PARTS: dict[type, Callable[[Weights, str, Any], Any]] = {
    kinds.Attention: Attention,
    kinds.DeltaNet: GatedDeltaNet,
    kinds.SwiGLU: SwiGLU,
    kinds.Experts: Experts,
    kinds.PerLayerInput: PerLayerInput,
}


class Norm:
    """An RMS norm of the residual stream; without a name nothing is done."""

    def __init__(self, weights: Weights, prefix: str, name: str, eps: float) -> None:
        self.weight = weights.vector(prefix + name) if name else None
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return x if self.weight is None else rms_norm(x, self.weight, self.eps)


class Branch:
    """See `spec.Branch`."""

    def __init__(self, weights: Weights, prefix: str, of: spec.Branch, eps: float) -> None:
        self.norm = Norm(weights, prefix, of.norm, eps)
        self.part = PARTS[type(of.part)](weights, prefix, of.part)
        self.post_norm = Norm(weights, prefix, of.post_norm, eps)

    def __call__(self, inputs: Inputs) -> Tensor:
        return self.post_norm(self.part(self.norm(inputs.h), inputs))


class Block:
    """One layer: what `LayerSpec.residuals` says."""

    def __init__(self, weights: Weights, index: int, layer: spec.LayerSpec, eps: float) -> None:
        prefix = f"blk.{index}."
        self.spec = layer
        self.residuals = [
            ([Branch(weights, prefix, one, eps) for one in of.branches], Norm(weights, prefix, of.post_norm, eps))
            for of in layer.residuals
        ]
        self.scale = weights.vector(prefix + spec.OUTPUT_SCALE) if layer.output_scale else None
        self.attn_norm, self.mixer = self.residuals[0][0][0].norm, self.residuals[0][0][0].part
        self.ffn = self.residuals[1][0][-1].part

    def new_state(self, kv: CachePair | None = None) -> LayerState:
        state: LayerState = self.mixer.new_state(kv)
        return state

    def __call__(self, h: Tensor, rows: Rows, state: LayerState, given: Tensor | None = None) -> Tensor:
        """The residual stream (n, hidden) after the layer. `given`: to this layer for each row, (n, width)."""
        for branches, post_norm in self.residuals:
            first, *more = (branch(Inputs(rows, h, state, given)) for branch in branches)
            h = h + post_norm(sum(more, start=first))
        return h if self.scale is None else h * self.scale
