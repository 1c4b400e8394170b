"""The pieces that target and drafter share: RMS norm, rotary positions, SwiGLU, masked attention, the KV cache."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from dflash_core.models.matrix import Matrix, Weights


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`x` (..., d) over the root of its mean square, times `weight` (d,). GGUF weights already hold any +1."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


class Rotary:
    """NEOX rotary embedding over the first `dims` of each head; pairs (i, i + dims/2), angle p * base^(-2i/dims)."""

    def __init__(self, dims: int, base: float, dtype: torch.dtype) -> None:
        self.dims = dims
        exponents = torch.arange(0, dims, 2, dtype=torch.float64) / dims
        # Rounded to float32 before the product: that is what every implementation of this model multiplies.
        self.frequencies = (base**-exponents).float().to(dtype)

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """(n,) positions -> cosines and sines, each (n, dims/2)."""
        angle = positions.to(self.frequencies.dtype)[:, None] * self.frequencies
        return angle.cos(), angle.sin()

    def __call__(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        """`x` (heads, n, head_dim) rotated; dimensions past `dims` pass through."""
        cos, sin = angles
        half = self.dims // 2
        a, b, rest = x[..., :half], x[..., half : self.dims], x[..., self.dims :]
        return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), dim=-1)


class FeedForward:
    """SwiGLU: ffn_down( silu(ffn_gate x) * (ffn_up x) )."""

    def __init__(self, weights: Weights, prefix: str) -> None:
        self.ffn_gate: Matrix = weights.matrix(prefix + "ffn_gate.weight")
        self.ffn_up: Matrix = weights.matrix(prefix + "ffn_up.weight")
        self.ffn_down: Matrix = weights.matrix(prefix + "ffn_down.weight")

    def __call__(self, x: Tensor) -> Tensor:
        return self.ffn_down(F.silu(self.ffn_gate(x)) * self.ffn_up(x))


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax attention with grouped heads: q (heads, n, d), k and v (kv_heads, m, d), mask (n, m) True = visible.

    Query head h reads kv head h // (heads / kv_heads). Returns (n, heads * d).
    """
    heads, n, d = q.shape
    kv_heads = k.shape[0]
    # Heads of one group are stacked as rows: one matrix product per kv head.
    scores = q.reshape(kv_heads, -1, d) @ k.transpose(1, 2) / math.sqrt(d)
    if mask is not None:
        scores = scores.view(kv_heads, heads // kv_heads, n, -1).masked_fill(~mask, -math.inf).view(scores.shape)
    out = torch.softmax(scores, dim=-1) @ v
    return out.view(heads, n, d).transpose(0, 1).reshape(n, heads * d)


def is_spine(path: Sequence[int]) -> bool:
    """Whether a path of ascending nodes is 0, 1, 2, ...: its rows then need no gathering."""
    return path[-1] == len(path) - 1


class KVCache:
    """Keys and values of the committed positions, followed by the uncommitted rows of the pass under way."""

    def __init__(self, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
        self.k = torch.empty(kv_heads, 0, head_dim, dtype=dtype)
        self.v = torch.empty(kv_heads, 0, head_dim, dtype=dtype)

    def write(self, length: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Put rows (kv_heads, n, head_dim) behind `length` committed ones; returns views over all length + n."""
        end = length + k.shape[1]
        if end > self.k.shape[1]:
            self.k, self.v = self._grown(self.k, length, end), self._grown(self.v, length, end)
        self.k[:, length:end], self.v[:, length:end] = k, v
        return self.k[:, :end], self.v[:, :end]

    def keep(self, length: int, path: Sequence[int]) -> None:
        """Commit the rows `path` of the last write: they move up to directly behind `length`."""
        if is_spine(path):
            return  # they stand there already
        index, end = length + torch.tensor(path), length + len(path)
        self.k[:, length:end] = self.k[:, index]
        self.v[:, length:end] = self.v[:, index]

    def copy(self) -> KVCache:
        """The same positions in memory of their own."""
        other = object.__new__(KVCache)
        other.k, other.v = self.k.clone(), self.v.clone()
        return other

    @property
    def nbytes(self) -> int:
        return self.k.nbytes + self.v.nbytes

    @staticmethod
    def _grown(old: Tensor, length: int, end: int) -> Tensor:
        new = old.new_empty(old.shape[0], max(end, 2 * old.shape[1], 256), old.shape[2])
        new[:, :length] = old[:, :length]
        return new
