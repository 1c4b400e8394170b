"""RMS norm and rotary positions, which every kind of layer uses."""

from __future__ import annotations

import torch
from torch import Tensor

from dflash_core.arch.rope import Scaling


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """`x` (..., d) over the root of its mean square, times `weight` (d,) if any. GGUF weights already hold any +1."""
    unit = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return unit if weight is None else unit * weight


class Rotary:
    """NEOX rotary embedding over the first `dims` of each head; pairs (i, i + dims/2), angle p * base^(-2i/dims),
    slowed down where positions are scaled, and divided by `factors` (dims/2,) where there are any."""

    def __init__(
        self, dims: int, base: float, dtype: torch.dtype, scaling: Scaling | None = None, factors: Tensor | None = None
    ) -> None:
        self.dims, self.scaling = dims, scaling
        frequencies = base ** (-torch.arange(0, dims, 2, dtype=torch.float64) / dims)
        if scaling is not None:
            frequencies *= torch.tensor(scaling.shares(dims // 2, base), dtype=torch.float64)
        if factors is not None:
            frequencies = frequencies.to(factors.device) / factors.double()
        # Rounded to float32 before the product: that is what every implementation of this model multiplies.
        self.frequencies = frequencies.float().to(dtype)

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """(n,) positions -> cosines and sines, each (n, dims/2)."""
        angle = positions.to(self.frequencies.dtype)[:, None] * self.frequencies
        cos, sin = angle.cos(), angle.sin()
        if self.scaling is None or self.scaling.attention == 1:
            return cos, sin
        return cos * self.scaling.attention, sin * self.scaling.attention

    def __call__(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        """`x` (heads, n, head_dim) rotated; dimensions past `dims` pass through."""
        cos, sin = angles
        half = self.dims // 2
        a, b, rest = x[..., :half], x[..., half : self.dims], x[..., self.dims :]
        return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), dim=-1)
