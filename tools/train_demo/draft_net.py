"""The drafter: blocks of masked positions that read the target's features up to their anchor."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .pieces import Piece, coefficients, convolve, ffn_block, linear, rms, rope
from .shapes import DraftConfig, Weights

ATTN_CONV = ("attn_conv_base", "attn_conv_proj.weight")
FFN_CONV = ("ffn_conv_base", "ffn_conv_proj.weight")


@Piece
def fuse_features(features: Tensor, fc: Tensor, norm: Tensor, eps: float) -> Tensor:
    """(B, S, captured layers * hidden) -> (B, S, hidden): what every drafter layer reads as its context."""
    return rms(linear(features, fc), norm, eps).to(fc.dtype)


@Piece
def draft_attention(
    h: Tensor, context: Tensor, seg: Tensor, anchor: Tensor, anchor_seg: Tensor, norm: Tensor, wq: Tensor, wk: Tensor,
    wv: Tensor, wo: Tensor, qn: Tensor, kn: Tensor, heads: int, kv_heads: int, head_dim: int, theta: float,
    window: int, eps: float, conv_base: Tensor | None = None, conv_proj: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Blocks h (B, A, L, hidden) attend to the context before their anchor and to themselves.

    window 0: all of the context, and the whole block in both directions; else causal, `window` positions wide.
    """
    batch, count, block, _ = h.shape
    length = context.shape[1]
    hn, around = rms(h, norm, eps), None
    if conv_base is not None and conv_proj is not None:
        around = coefficients(hn, conv_base, conv_proj)
        hn = convolve(hn, around[0])
    hn = hn.to(wq.dtype)
    offset = torch.arange(block, device=h.device)
    here = anchor[..., None] + offset  # (B, A, L) absolute positions
    there = torch.arange(length, device=h.device)

    def split(x: Tensor, n: int) -> Tensor:
        return x.view(*x.shape[:-1], n, head_dim)

    q = rope(rms(split(linear(hn, wq), heads), qn, eps).transpose(2, 3), here[:, :, None], head_dim, theta)
    k = rope(rms(split(linear(hn, wk), kv_heads), kn, eps).transpose(2, 3), here[:, :, None], head_dim, theta)
    v = split(linear(hn, wv), kv_heads).transpose(2, 3)  # (B, A, kv, L, D)
    ck = rope(rms(split(linear(context, wk), kv_heads), kn, eps).transpose(1, 2), there, head_dim, theta)
    cv = split(linear(context, wv), kv_heads).transpose(1, 2)  # (B, kv, S, D)
    q, k, ck = q.to(wq.dtype), k.to(wq.dtype), ck.to(wq.dtype)

    group = heads // kv_heads
    qc = q.view(batch, count, kv_heads, group * block, head_dim)
    to_block = (qc @ k.transpose(3, 4)).view(batch, count, heads, block, block).float()
    qc = qc.transpose(1, 2).reshape(batch, kv_heads, count * group * block, head_dim)
    to_context = (qc @ ck.transpose(2, 3)).view(batch, kv_heads, count, group, block, length).transpose(1, 2)
    to_context = to_context.reshape(batch, count, heads, block, length).float()

    sees = (there < anchor[..., None]) & (seg[:, None] == anchor_seg[..., None])  # (B, A, S)
    sees = sees[:, :, None, None].expand(-1, -1, -1, block, -1)
    scale = head_dim**-0.5
    if window:
        sees = sees & ((here[..., None] - there) < window)[:, :, None]
        to_block = torch.where(offset[:, None] >= offset, to_block, -math.inf)
    scores = torch.cat([torch.where(sees, to_context, -math.inf), to_block], dim=-1) * scale
    p = scores.softmax(-1).to(wq.dtype)
    pc, pb = p[..., :length], p[..., length:]
    pc = pc.view(batch, count, kv_heads, group * block, length).transpose(1, 2)
    oc = pc.reshape(batch, kv_heads, -1, length) @ cv
    oc = oc.view(batch, kv_heads, count, group * block, head_dim).transpose(1, 2)
    o = oc + pb.reshape(batch, count, kv_heads, group * block, block) @ v
    o = o.reshape(batch, count, heads, block, head_dim).transpose(2, 3)
    out = linear(o.reshape(batch, count, block, heads * head_dim), wo).float()
    return h + (out if around is None else convolve(out, around[1]))


def draft_forward(
    c: DraftConfig, w: Weights, features: Tensor, seg: Tensor, anchor: Tensor, anchor_seg: Tensor, noise: Tensor
) -> Tensor:
    """Normalised outputs (B, A, block, hidden) whose rows 1.. go through the target's head.

    features (B, S, captured layers * hidden) and seg (B, S): the context. anchor, anchor_seg (B, A): each block's
    start and document. noise (B, A, block, hidden): the target's embeddings of [anchor token, mask, mask, ...].
    """
    context = fuse_features(features, w["fc.weight"], w["enc.output_norm.weight"], c.eps)
    h = noise.float()
    for i in range(c.layers):

        def of(name: str, b: str = f"blk.{i}.") -> Tensor:
            return w[b + name]

        h = draft_attention(
            h, context, seg, anchor, anchor_seg, of("attn_norm.weight"), of("attn_q.weight"), of("attn_k.weight"),
            of("attn_v.weight"), of("attn_output.weight"), of("attn_q_norm.weight"), of("attn_k_norm.weight"),
            c.heads, c.kv_heads, c.head_dim, c.rope_theta, c.window if c.sliding[i] else 0, c.eps,
            *map(of, ATTN_CONV if c.conv else ()),
        )  # fmt: skip
        h = ffn_block(
            h, of("ffn_norm.weight"), of("ffn_gate.weight"), of("ffn_up.weight"), of("ffn_down.weight"), c.eps,
            *map(of, FFN_CONV if c.conv else ()),
        )  # fmt: skip
    return rms(h, w["output_norm.weight"], c.eps)
