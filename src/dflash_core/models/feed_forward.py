"""The feed-forward half of a layer."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from dflash_core.arch import kinds
from dflash_core.models.matrix import Matrix, Weights
from dflash_core.models.rows import Inputs


def _clamped_swiglu(gate: Tensor, up: Tensor) -> Tensor:
    gate, up = gate.clamp(max=kinds.CLAMP), up.clamp(-kinds.CLAMP, kinds.CLAMP)
    return gate * torch.sigmoid(kinds.CLAMP_ALPHA * gate) * (up + 1)


ACTIVATIONS: dict[kinds.Activation, Callable[[Tensor, Tensor], Tensor]] = {
    "silu": lambda gate, up: F.silu(gate) * up,
    "gelu_tanh": lambda gate, up: F.gelu(gate, approximate="tanh") * up,
    "clamped_swiglu": _clamped_swiglu,
}
"""What goes down of gate and up, for each activation."""


class SwiGLU:
    """ffn_down( activation(ffn_gate x, ffn_up x) )."""

    def __init__(self, weights: Weights, prefix: str, spec: kinds.SwiGLU) -> None:
        self.ffn_gate: Matrix = weights.matrix(prefix + "ffn_gate.weight")
        self.ffn_up: Matrix = weights.matrix(prefix + "ffn_up.weight")
        self.ffn_down: Matrix = weights.matrix(prefix + "ffn_down.weight")
        self.activation = ACTIVATIONS[spec.activation]

    def __call__(self, x: Tensor, inputs: Inputs | None = None) -> Tensor:
        return self.ffn_down(self.activation(self.ffn_gate(x), self.ffn_up(x)))


class PerLayerInput:
    """proj( gelu(inp_gate h) * what is given to this layer )."""

    def __init__(self, weights: Weights, prefix: str, spec: kinds.PerLayerInput) -> None:
        self.inp_gate: Matrix = weights.matrix(prefix + "inp_gate.weight")
        self.proj: Matrix = weights.matrix(prefix + "proj.weight")

    def __call__(self, x: Tensor, inputs: Inputs) -> Tensor:
        assert inputs.given is not None, "a layer without what is given to it"
        return self.proj(F.gelu(self.inp_gate(x), approximate="tanh") * inputs.given)
