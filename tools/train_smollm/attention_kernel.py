"""The Triton kernel of `attention.attend`: a program for each row and each head of keys."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .attention import BLOCK


@triton.jit  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, v_ptr, out_ptr, first_ptr, at_ptr, length, scale,
    KV: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    batch, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    at = tl.load(at_ptr).to(tl.int32)
    first = tl.load(first_ptr + batch).to(tl.int32)
    rows, dims = tl.arange(0, 16), tl.arange(0, DIM)  # 16: the fewest rows of a matrix product
    here = ((batch * KV + head) * GROUP + rows[:, None]) * DIM + dims[None, :]
    q = tl.load(q_ptr + here, mask=rows[:, None] < GROUP, other=0.0)
    base = (batch * KV + head) * length * DIM
    best = tl.full((16,), float("-inf"), tl.float32)
    total = tl.zeros((16,), tl.float32)
    out = tl.zeros((16, DIM), tl.float32)
    for begin in range(first, at + 1, COLUMNS):
        column = begin + tl.arange(0, COLUMNS)
        inside = column <= at
        place = base + column[:, None] * DIM + dims[None, :]
        k = tl.load(k_ptr + place, mask=inside[:, None], other=0.0)
        v = tl.load(v_ptr + place, mask=inside[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale
        scores = tl.where(inside[None, :], scores, float("-inf"))
        higher = tl.maximum(best, tl.max(scores, 1))
        p = tl.exp(scores - higher[:, None])
        fade = tl.exp(best - higher)
        total = total * fade + tl.sum(p, 1)
        out = out * fade[:, None] + tl.dot(p.to(v.dtype), v)
        best = higher
    out = out / total[:, None]
    tl.store(out_ptr + here, out.to(out_ptr.dtype.element_ty), mask=rows[:, None] < GROUP)


def launch(q: Tensor, keys: Tensor, values: Tensor, first: Tensor, at: Tensor) -> Tensor:
    """`attention.attend` on a card."""
    batch, heads, dim = q.shape
    kv, length = keys.shape[1:3]
    q, out = q.contiguous(), torch.empty_like(q, memory_format=torch.contiguous_format)
    _attend[(batch, kv)](
        q, keys, values, out, first, at, length, dim**-0.5, KV=kv, GROUP=heads // kv, DIM=dim, COLUMNS=BLOCK
    )  # fmt: skip
    return out.view(batch, heads * dim)
