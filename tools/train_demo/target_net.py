"""The target's forward pass over whole rows, for training.

Rows are packed: `seg` (B, S) numbers the document of every position, and nothing crosses a document's border.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .delta import CHUNK, delta_inputs, delta_output, delta_rule
from .pieces import Piece, ffn_block, linear, rms, rope
from .shapes import TargetConfig, Weights


@Piece
def attention_block(
    h: Tensor, seg: Tensor, norm: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, wo: Tensor, qn: Tensor, kn: Tensor,
    heads: int, kv_heads: int, head_dim: int, rope_dim: int, theta: float, eps: float,
) -> Tensor:  # fmt: skip
    """h (B, S, hidden) plus gated causal attention within each document."""
    batch, length, _ = h.shape
    a = rms(h, norm, eps).to(wq.dtype)
    q, gate = linear(a, wq).view(batch, length, heads, 2, head_dim).unbind(3)
    k = linear(a, wk).view(batch, length, kv_heads, head_dim).transpose(1, 2)
    v = linear(a, wv).view(batch, length, kv_heads, head_dim).transpose(1, 2)
    at = torch.arange(length, device=h.device)
    q = rope(rms(q.transpose(1, 2), qn, eps), at, rope_dim, theta).to(wq.dtype)
    k = rope(rms(k, kn, eps), at, rope_dim, theta).to(wq.dtype)
    q = q.reshape(batch, kv_heads, heads // kv_heads * length, head_dim)
    scores = (q @ k.transpose(2, 3)).view(batch, heads, length, length).float() * head_dim**-0.5
    visible = (at[:, None] >= at) & (seg[:, None, :, None] == seg[:, None, None, :])
    p = torch.where(visible, scores, -math.inf).softmax(-1).to(wq.dtype)
    o = (p.view(batch, kv_heads, -1, length) @ v).view(batch, heads, length, head_dim)
    o = o.transpose(1, 2).float() * gate.float().sigmoid()
    return h + linear(o.reshape(batch, length, heads * head_dim), wo).float()


def target_forward(
    c: TargetConfig, w: Weights, ids: Tensor, seg: Tensor, captured_layers: tuple[int, ...] = ()
) -> tuple[Tensor, Tensor]:
    """Final hidden states after the output norm (B, S, hidden), and the captured layers' outputs, concatenated.

    ids, seg: (B, S) integers. Features are in the dtype of the linear weights.
    """
    length = ids.shape[1]
    pad = -length % CHUNK
    if pad:
        ids, seg = F.pad(ids, (0, pad)), F.pad(seg, (0, pad), value=-2)
    h = F.embedding(ids, w["token_embd.weight"]).float()
    features = []
    for i in range(c.layers):
        b = f"blk.{i}."

        def of(name: str, b: str = b) -> Tensor:
            return w[b + name]

        if c.is_full(i):
            h = attention_block(
                h, seg, of("attn_norm.weight"), of("attn_q.weight"), of("attn_k.weight"), of("attn_v.weight"),
                of("attn_output.weight"), of("attn_q_norm.weight"), of("attn_k_norm.weight"),
                c.heads, c.kv_heads, c.head_dim, c.rope_dim, c.rope_theta, c.eps,
            )  # fmt: skip
        else:
            q, k, v, g, beta, z = delta_inputs(
                h, seg, of("attn_norm.weight"), of("attn_qkv.weight"), of("attn_gate.weight"), of("ssm_beta.weight"),
                of("ssm_alpha.weight"), of("ssm_conv1d.weight"), of("ssm_dt.bias"), of("ssm_a"),
                c.k_heads, c.v_heads, c.state, c.eps,
            )  # fmt: skip
            o = delta_rule(q, k, v, g, beta)
            h = delta_output(h, o, z, of("ssm_norm.weight"), of("ssm_out.weight"), c.v_heads, c.eps)
        h = ffn_block(
            h, of("post_attention_norm.weight"), of("ffn_gate.weight"), of("ffn_up.weight"), of("ffn_down.weight"),
            c.eps,
        )  # fmt: skip
        if i in captured_layers:
            features.append(h[:, :length].to(w["output.weight"].dtype))
    hidden = rms(h[:, :length], w["output_norm.weight"], c.eps)
    empty = hidden.new_zeros(*hidden.shape[:2], 0)
    return hidden, torch.cat(features, dim=-1) if features else empty


@Piece
def token_losses(hidden: Tensor, head: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of each row: hidden (n, hidden), labels (n,) -> (n,) float32."""
    return F.cross_entropy(linear(hidden, head).float(), labels, reduction="none")
