"""Pieces that both networks are built from, and the switch that compiles them.

A piece is a pure function of tensors and sizes, so that one compiled copy serves every layer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_COMPILE = False


class Piece:
    """A function that runs compiled once `use_compile(True)` was called (on a GPU), plain otherwise."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.plain = function
        self.fast: Callable[..., Any] | None = None
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any) -> Any:
        if not _COMPILE:
            return self.plain(*args)
        if self.fast is None:
            self.fast = torch.compile(self.plain, dynamic=False)
        return self.fast(*args)


def use_compile(enabled: bool) -> None:
    """Switch compilation of all pieces on or off."""
    global _COMPILE
    _COMPILE = enabled


@contextmanager
def uncompiled() -> Iterator[None]:
    """Pieces run plain: for shapes that come once, which are not worth compiling."""
    before = _COMPILE
    use_compile(False)
    try:
        yield
    finally:
        use_compile(before)


def prepare_card(*, compiled: bool) -> None:
    """Settings of torch for training on a GPU."""
    torch.set_float32_matmul_precision("high")
    from torch import _dynamo  # takes a second to import

    _dynamo.config.recompile_limit = 64  # every piece is used with a few shapes
    use_compile(compiled)


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square normalisation over the last dimension, in float32."""
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x (..., in) times weight (out, in), in the dtype of the weight -> (..., out)."""
    return F.linear(x.to(weight.dtype), weight)


def rope(x: Tensor, positions: Tensor, rotated: int, theta: float) -> Tensor:
    """Rotate the first `rotated` dims of x (..., T, D), pairing i with i + rotated/2, at `positions` (..., T)."""
    half = rotated // 2
    frequency = theta ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = positions[..., None].float() * frequency
    cos, sin = angle.cos(), angle.sin()
    a, b = x[..., :half], x[..., half:rotated]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., rotated:]], dim=-1)


def coefficients(x: Tensor, base: Tensor, proj: Tensor) -> Tensor:
    """Weights (2, taps, ..., rows, hidden) of the convolutions before and after a sub-layer, whose normalised input is
    x (..., rows, hidden)."""
    sides, taps, hidden = base.shape
    given = linear(x, proj).float()
    given = given.view(*x.shape[:-1], sides, taps, -1)
    given = given.movedim((-3, -2), (0, 1))
    fixed = base.view(sides, taps, *(1,) * (x.dim() - 1), hidden)
    return fixed + given.repeat_interleave(hidden // given.shape[-1], dim=-1)


def convolve(x: Tensor, weights: Tensor) -> Tensor:
    """Convolve x (..., rows, hidden) with weights (taps, ..., rows, hidden): tap t reads the row t rows earlier."""
    x = x.float()
    out = weights[0] * x
    for tap in range(1, len(weights)):
        out = out + weights[tap] * F.pad(x, (0, 0, tap, 0))[..., : x.shape[-2], :]
    return out


@Piece
def ffn_block(
    h: Tensor, norm: Tensor, gate: Tensor, up: Tensor, down: Tensor, eps: float,
    conv_base: Tensor | None = None, conv_proj: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """h (..., hidden) plus SwiGLU of the normalised h, with convolutions before and after it where they are given."""
    m = rms(h, norm, eps)
    if conv_base is None or conv_proj is None:
        m = m.to(gate.dtype)
        return h + linear(F.silu(linear(m, gate)) * linear(m, up), down).float()
    around = coefficients(m, conv_base, conv_proj)
    m = convolve(m, around[0]).to(gate.dtype)
    return h + convolve(linear(F.silu(linear(m, gate)) * linear(m, up), down), around[1])
