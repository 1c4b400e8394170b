"""Grouped dynamic convolutions over the rows of a drafted block, before and after a sub-layer.

The coefficients of both convolutions come from the sub-layer's normed input: a fixed part per channel, and a part per
group of channels that is computed from the input. Rows before the block are zero.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dflash_core.arch import draft_heads
from dflash_core.models.matrix import Matrix, Weights


@dataclass(frozen=True, slots=True)
class Around:
    """The coefficients of both sides for one block: (2, taps, block, hidden)."""

    coefficients: Tensor

    def before(self, x: Tensor) -> Tensor:
        """A sub-layer's normed input (block, hidden)."""
        return _convolve(x, self.coefficients[0])

    def after(self, x: Tensor) -> Tensor:
        """A sub-layer's output (block, hidden)."""
        return _convolve(x, self.coefficients[1])


class Convolution:
    """The pair around one sub-layer. `name`: its prefix, as blk.0.attn."""

    def __init__(self, weights: Weights, name: str, spec: draft_heads.Convolution) -> None:
        self.kernel, self.group = spec.kernel, spec.group
        self.base = weights.vector(name + "_conv_base")
        self.proj: Matrix = weights.matrix(name + "_conv_proj.weight")

    def __call__(self, x: Tensor) -> Around:
        """The normed input (block, hidden) of the sub-layer."""
        given = self.proj(x).view(len(x), 2, self.kernel, -1).permute(1, 2, 0, 3)
        return Around(self.base[:, :, None] + given.repeat_interleave(self.group, dim=-1))


def _convolve(x: Tensor, coefficients: Tensor) -> Tensor:
    """Rows (block, hidden), coefficients (taps, block, hidden): tap t reads the row t before."""
    out = coefficients[0] * x
    for tap in range(1, min(len(coefficients), len(x))):
        out[tap:] += coefficients[tap, tap:] * x[:-tap]
    return out
