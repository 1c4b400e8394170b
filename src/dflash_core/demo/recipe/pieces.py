"""Pieces that both networks are built from, and the switch that compiles them.

A piece is a pure function of tensors and sizes, so that one compiled copy serves every layer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
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
    """Whether every piece runs compiled from now on."""
    global _COMPILE
    _COMPILE = enabled


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


@Piece
def ffn_block(h: Tensor, norm: Tensor, gate: Tensor, up: Tensor, down: Tensor, eps: float) -> Tensor:
    """h (..., hidden) plus the SwiGLU of its normalised self."""
    m = rms(h, norm, eps).to(gate.dtype)
    return h + linear(F.silu(linear(m, gate)) * linear(m, up), down).float()
