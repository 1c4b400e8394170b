"""The MTP head's forward pass over whole rows for training, at every depth that it will draft.

Row p of depth 1 is the pair (token p + 1, the target's hidden state of p). Row p of depth d is the pair (token p + d,
the head's own hidden state of depth d - 1), one position further on. It attends to what the cache would hold there: the
true pairs up to p and the pairs of its own chain.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from .pieces import ffn_block, linear, rms, rope
from .shapes import TargetConfig, Weights


def mtp_forward(
    c: TargetConfig, w: Weights, embedding: Tensor, ids: Tensor, seg: Tensor, hidden: Tensor, depths: int
) -> Iterator[Tensor]:
    """Yield the head's hidden rows (B, S, hidden) of each depth from 1; the target's output head makes logits of them.

    w: by the names in the file without their block. ids, seg (B, S); hidden (B, S, hidden): the target's, normalised.
    """
    batch, length = ids.shape
    heads, kv_heads, dim, eps = c.heads, c.kv_heads, c.head_dim, c.eps
    at = torch.arange(length, device=ids.device)
    visible = (at[:, None] >= at) & (seg[:, None, :, None] == seg[:, None, None, :])
    keys, values = [], []  # of the true pairs, then of each further depth
    for depth in range(1, depths + 1):
        tokens = F.pad(ids, (0, depth))[:, depth:]
        pair = torch.cat(
            (
                rms(F.embedding(tokens, embedding), w["nextn.enorm.weight"], eps),
                rms(hidden, w["nextn.hnorm.weight"], eps),
            ),
            dim=-1,
        )
        u = linear(pair, w["nextn.eh_proj.weight"]).float()
        a = rms(u, w["attn_norm.weight"], eps).to(w["attn_q.weight"].dtype)
        q, gate = linear(a, w["attn_q.weight"]).view(batch, length, heads, 2, dim).unbind(3)
        k = linear(a, w["attn_k.weight"]).view(batch, length, kv_heads, dim).transpose(1, 2)
        v = linear(a, w["attn_v.weight"]).view(batch, length, kv_heads, dim).transpose(1, 2)
        here = at + depth - 1
        q = rope(rms(q.transpose(1, 2), w["attn_q_norm.weight"], eps), here, c.rope_dim, c.rope_theta).to(a.dtype)
        keys.append(rope(rms(k, w["attn_k_norm.weight"], eps), here, c.rope_dim, c.rope_theta).to(a.dtype))
        values.append(v)
        group = q.reshape(batch, kv_heads, heads // kv_heads, length, dim)
        true = torch.einsum("bkgqd,bksd->bkgqs", group, keys[0]).float()
        true = torch.where(visible[:, :, None], true, -math.inf)
        own = [(group * one[:, :, None]).sum(-1, keepdim=True).float() for one in keys[1:]]
        p = (torch.cat([true, *own], dim=-1) * dim**-0.5).softmax(-1).to(a.dtype)
        o = torch.einsum("bkgqs,bksd->bkgqd", p[..., :length], values[0])
        for number, one in enumerate(values[1:]):
            o = o + p[..., length + number, None] * one[:, :, None]
        o = o.reshape(batch, heads, length, dim).transpose(1, 2).float() * gate.float().sigmoid()
        u = u + linear(o.reshape(batch, length, heads * dim), w["attn_output.weight"]).float()
        u = ffn_block(
            u, w["post_attention_norm.weight"], w["ffn_gate.weight"], w["ffn_up.weight"], w["ffn_down.weight"], eps
        )
        hidden = rms(u, w["nextn.shared_head_norm.weight"], eps)
        yield hidden
