"""The feed-forward half of a layer."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from dflash_core.arch import kinds
from dflash_core.models.matrix import Matrix, Weights


class SwiGLU:
    """ffn_down( silu(ffn_gate x) * (ffn_up x) )."""

    def __init__(self, weights: Weights, prefix: str, spec: kinds.SwiGLU) -> None:
        self.ffn_gate: Matrix = weights.matrix(prefix + "ffn_gate.weight")
        self.ffn_up: Matrix = weights.matrix(prefix + "ffn_up.weight")
        self.ffn_down: Matrix = weights.matrix(prefix + "ffn_down.weight")

    def __call__(self, x: Tensor) -> Tensor:
        return self.ffn_down(F.silu(self.ffn_gate(x)) * self.ffn_up(x))
