"""The target one token at a time, for a batch of sequences that advance together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .pieces import Piece, ffn_block, linear, rms, rope
from .shapes import TargetConfig, Weights


@dataclass
class DecodeState:
    """The state of a batch of B sequences. Each list has one entry per layer of its kind, in the order of layers."""

    conv: list[Tensor]
    """(B, conv - 1, conv_dim) raw rows, oldest first"""
    delta: list[Tensor]
    """(B, Hv, D, D)"""
    keys: list[Tensor]
    """(B, kv_heads, T, head_dim)"""
    values: list[Tensor]
    """(B, kv_heads, T, head_dim)"""
    at: int = 0
    """Tokens fed so far."""


def decode_state(c: TargetConfig, batch: int, length: int, device: torch.device, dtype: torch.dtype) -> DecodeState:
    """The state before the first token, with room for `length` of them; `dtype` is that of the linear weights."""
    linear_layers = [i for i in range(c.layers) if not c.is_full(i)]
    full = [i for i in range(c.layers) if c.is_full(i)]

    def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(batch, *shape, device=device, dtype=dtype)

    return DecodeState(
        [zeros(c.conv - 1, c.conv_dim) for _ in linear_layers],
        [zeros(c.v_heads, c.state, c.state) for _ in linear_layers],
        [zeros(c.kv_heads, length, c.head_dim, dtype=dtype) for _ in full],
        [zeros(c.kv_heads, length, c.head_dim, dtype=dtype) for _ in full],
    )


@Piece
def delta_step(
    h: Tensor, rows: Tensor, s: Tensor, norm: Tensor, wqkv: Tensor, wz: Tensor, wbeta: Tensor, walpha: Tensor,
    conv: Tensor, dt: Tensor, a_log: Tensor, onorm: Tensor, wo: Tensor, k_heads: int, v_heads: int, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """One token of every sequence through a delta-net layer: h (B, hidden), conv rows, state -> the three, advanced."""
    batch, state = h.shape[0], s.shape[-1]
    a = rms(h, norm, eps).to(wqkv.dtype)
    rows = torch.cat([rows, linear(a, wqkv).float()[:, None]], dim=1)
    c = F.silu((rows * conv.T).sum(1))
    q, k, v = torch.split(c, [k_heads * state, k_heads * state, v_heads * state], dim=-1)
    q, k, v = q.view(batch, k_heads, state), k.view(batch, k_heads, state), v.view(batch, v_heads, state)
    q = q * torch.rsqrt(q.square().sum(-1, keepdim=True) + 1e-6) * state**-0.5
    k = k * torch.rsqrt(k.square().sum(-1, keepdim=True) + 1e-6)
    q, k = q.repeat(1, v_heads // k_heads, 1), k.repeat(1, v_heads // k_heads, 1)
    beta = linear(a, wbeta).float().sigmoid()
    g = -a_log.exp() * F.softplus(linear(a, walpha).float() + dt)
    s = s * g.exp()[..., None, None]
    d = beta[..., None] * (v - (s * k[..., None]).sum(2))
    s = s + k[..., None] * d[:, :, None]
    o = (s * q[..., None]).sum(2)
    y = rms(o, onorm, eps) * F.silu(linear(a, wz).float().view(batch, v_heads, state))
    return h + linear(y.reshape(batch, -1), wo).float(), rows[:, 1:], s


def attention_step(
    c: TargetConfig, h: Tensor, keys: Tensor, values: Tensor, at: int, w: Callable[[str], Tensor]
) -> Tensor:
    """One token of every sequence through a full-attention layer; writes row `at` of the caches."""
    batch = h.shape[0]
    a = rms(h, w("attn_norm.weight"), c.eps).to(keys.dtype)
    q, gate = linear(a, w("attn_q.weight")).view(batch, c.heads, 2, c.head_dim).unbind(2)
    k = linear(a, w("attn_k.weight")).view(batch, c.kv_heads, 1, c.head_dim)
    where = torch.tensor([at], device=h.device)
    q = rope(rms(q, w("attn_q_norm.weight"), c.eps)[:, :, None], where, c.rope_dim, c.rope_theta)
    keys[:, :, at : at + 1] = rope(rms(k, w("attn_k_norm.weight"), c.eps), where, c.rope_dim, c.rope_theta).to(
        keys.dtype
    )
    values[:, :, at] = linear(a, w("attn_v.weight")).view(batch, c.kv_heads, c.head_dim)
    q = q.view(batch, c.kv_heads, c.heads // c.kv_heads, c.head_dim).to(keys.dtype)
    p = ((q @ keys[:, :, : at + 1].transpose(2, 3)).float() * c.head_dim**-0.5).softmax(-1)
    o = (p.to(keys.dtype) @ values[:, :, : at + 1]).view(batch, c.heads, c.head_dim)
    return h + linear((o.float() * gate.float().sigmoid()).reshape(batch, -1), w("attn_output.weight")).float()


def target_step(c: TargetConfig, w: Weights, state: DecodeState, ids: Tensor) -> Tensor:
    """Logits (B, vocab) after feeding one token (B,) to every sequence."""
    h = F.embedding(ids, w["token_embd.weight"]).float()
    n_linear = n_full = 0
    for i in range(c.layers):

        def of(name: str, b: str = f"blk.{i}.") -> Tensor:
            return w[b + name]

        if c.is_full(i):
            h = attention_step(c, h, state.keys[n_full], state.values[n_full], state.at, of)
            n_full += 1
        else:
            h, state.conv[n_linear], state.delta[n_linear] = delta_step(
                h, state.conv[n_linear], state.delta[n_linear], of("attn_norm.weight"), of("attn_qkv.weight"),
                of("attn_gate.weight"), of("ssm_beta.weight"), of("ssm_alpha.weight"), of("ssm_conv1d.weight"),
                of("ssm_dt.bias"), of("ssm_a"), of("ssm_norm.weight"), of("ssm_out.weight"),
                c.k_heads, c.v_heads, c.eps,
            )  # fmt: skip
            n_linear += 1
        h = ffn_block(
            h, of("post_attention_norm.weight"), of("ffn_gate.weight"), of("ffn_up.weight"), of("ffn_down.weight"),
            c.eps,
        )  # fmt: skip
    state.at += 1
    return linear(rms(h, w["output_norm.weight"], c.eps), w["output.weight"]).float()
