"""The gated delta net over whole rows: chunks of CHUNK tokens in parallel, a scan over the chunks, and its gradients.

B rows of S tokens become N chunks of C = CHUNK tokens; the batch and the V heads are one dimension, B*Hv or BH. Packed
documents do not mix: neither the convolution nor the recurrent state crosses a border of `seg` (B, S).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .pieces import Piece, linear, rms

CHUNK = 64
"""Tokens handled as one block by the chunked delta rule."""


RESET = -40.0
"""Log-decay at a document's first token: exp(-40) empties the recurrent state, and float32 sums stay exact enough."""


@Piece
def delta_inputs(
    h: Tensor, seg: Tensor, norm: Tensor, wqkv: Tensor, wz: Tensor, wbeta: Tensor, walpha: Tensor, conv: Tensor,
    dt: Tensor, a_log: Tensor, k_heads: int, v_heads: int, state: int, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """q, k, v (N, B*Hv, C, D), the in-chunk sum of log-decays G and beta (N, B*Hv, C), and the output gate z."""
    batch, length, _ = h.shape
    a = rms(h, norm, eps).to(wqkv.dtype)
    raw = linear(a, wqkv).float()
    z = linear(a, wz)
    beta = linear(a, wbeta).float().sigmoid()
    start = seg != F.pad(seg, (1, 0), value=-1)[:, :-1]
    g = -a_log.exp() * F.softplus(linear(a, walpha).float() + dt)
    g = torch.where(start[..., None], RESET, g)
    taps = conv.shape[1]
    c = raw * conv[:, taps - 1]
    for back in range(1, taps):
        same = seg == F.pad(seg, (back, 0), value=-1)[:, :-back]
        c = c + F.pad(raw, (0, 0, back, 0))[:, :-back] * same[..., None] * conv[:, taps - 1 - back]
    c = F.silu(c)
    q, k, v = torch.split(c, [k_heads * state, k_heads * state, v_heads * state], dim=-1)

    def heads(x: Tensor, n: int) -> Tensor:
        return x.view(batch, length, n, state)

    q, k, v = heads(q, k_heads), heads(k, k_heads), heads(v, v_heads)
    q = q * torch.rsqrt(q.square().sum(-1, keepdim=True) + 1e-6) * state**-0.5
    k = k * torch.rsqrt(k.square().sum(-1, keepdim=True) + 1e-6)
    repeat = v_heads // k_heads  # tiled order: V head i reads K head i % k_heads
    q, k = q.repeat(1, 1, repeat, 1), k.repeat(1, 1, repeat, 1)

    def chunks(x: Tensor) -> Tensor:  # (B, S, H, ...) -> (N, B*H, C, ...): the scan walks over the first dimension
        x = x.view(batch, length // CHUNK, CHUNK, v_heads, *x.shape[3:])
        return x.movedim(0, 1).movedim(3, 2).reshape(length // CHUNK, batch * v_heads, CHUNK, *x.shape[4:])

    return chunks(q), chunks(k), chunks(v), chunks(g).cumsum(-1), chunks(beta), z


@Piece
def chunk_matrix(k: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """The strictly lower A (N, BH, C, C) of the chunked delta rule: A_ij = beta_i (k_i . k_j) exp(G_i - G_j)."""
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=k.device).tril(-1)
    decay = torch.where(lower, g[..., :, None] - g[..., None, :], -math.inf).exp()
    return (k * beta[..., None]) @ k.transpose(-1, -2) * decay


@Piece
def chunk_terms(t: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """U, W, the keys decayed to the chunk's end, and the chunk's whole decay (N, BH, 1, 1)."""
    u = t @ (v * beta[..., None])
    w = t @ (k * (beta * g.exp())[..., None])
    tail = k * (g[..., -1:] - g).exp()[..., None]
    return u, w, tail, g[..., -1].exp()[..., None, None]


@Piece
def chunk_outputs(q: Tensor, k: Tensor, g: Tensor, new: Tensor, state: Tensor) -> Tensor:
    """O = (e^G q) S + ((q k^T) exp(G_i - G_j)) new, the diagonal included."""
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    decay = torch.where(lower, g[..., :, None] - g[..., None, :], -math.inf).exp()
    return (q * g.exp()[..., None]) @ state + (q @ k.transpose(-1, -2) * decay) @ new


@Piece
def delta_output(h: Tensor, o: Tensor, z: Tensor, norm: Tensor, wo: Tensor, v_heads: int, eps: float) -> Tensor:
    """h (B, S, hidden) plus the projected, normalised and gated heads o (N, BH, C, D)."""
    batch, length, _ = h.shape
    state = o.shape[-1]
    o = o.view(length // CHUNK, batch, v_heads, CHUNK, state).permute(1, 0, 3, 2, 4)
    y = rms(o.reshape(batch, length, v_heads, state), norm, eps) * F.silu(z.float().view(batch, length, v_heads, state))
    return h + linear(y.reshape(batch, length, -1), wo).float()


def unit_lower_inverse(a: Tensor) -> Tensor:
    """(I + A)^-1 for strictly lower A (..., n, n), n a power of two: halves are inverted together, then joined."""
    n = a.shape[-1]
    if n <= 16:  # (I + A)^-1 = (I - A)(I + A^2)(I + A^4)..., exact because A^n = 0
        eye = torch.eye(n, device=a.device, dtype=a.dtype)
        out, power = eye - a, a
        for _ in range(n.bit_length() - 2):
            power = power @ power
            out = out + out @ power
        return out
    half = n // 2
    both = unit_lower_inverse(torch.stack([a[..., :half, :half], a[..., half:, half:]]))
    out = torch.zeros_like(a)
    out[..., :half, :half] = both[0]
    out[..., half:, half:] = both[1]
    out[..., half:, :half] = -both[1] @ a[..., half:, :half] @ both[0]
    return out


class _Inverse(torch.autograd.Function):
    """`unit_lower_inverse` with its closed-form gradient: dA = -T^T dT T^T."""

    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        t = unit_lower_inverse(a)
        ctx.save_for_backward(t)
        return t

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (t,) = ctx.saved_tensors
        tt = t.transpose(-1, -2)
        out: Tensor = (-tt @ grad @ tt).tril(-1)
        return out


class _Scan(torch.autograd.Function):
    """The only sequential part: S_{n+1} = decay_n S_n + tail_n^T (u_n - w_n S_n), chunk after chunk, from S_0 = 0.

    u, w, tail (N, BH, C, D), decay (N, BH, 1, 1) -> new values (N, BH, C, D) and the states (N + 1, BH, D, D).
    """

    @staticmethod
    def forward(ctx: Any, u: Tensor, w: Tensor, tail: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
        n, bh, _, d = u.shape
        states = torch.empty(n + 1, bh, d, d, device=u.device, dtype=u.dtype)
        states[0] = 0
        new = torch.empty_like(u)
        for i in range(n):
            torch.baddbmm(u[i], w[i], states[i], alpha=-1, out=new[i])
            torch.mul(states[i], decay[i], out=states[i + 1])
            states[i + 1].baddbmm_(tail[i].transpose(1, 2), new[i])
        ctx.save_for_backward(w, tail, decay, new, states)
        return new, states

    @staticmethod
    def backward(ctx: Any, grad_new: Tensor, grad_states: Tensor) -> tuple[Tensor, ...]:
        w, tail, decay, new, states = ctx.saved_tensors
        dnew = grad_new.clone()
        ds = grad_states.clone()
        for i in reversed(range(w.shape[0])):
            dnew[i].baddbmm_(tail[i], ds[i + 1])
            ds[i].addcmul_(ds[i + 1], decay[i])
            ds[i].baddbmm_(w[i].transpose(1, 2), dnew[i], alpha=-1)
        after = ds[1:]
        dw = -(dnew @ states[:-1].transpose(-1, -2))
        dtail = new @ after.transpose(-1, -2)
        ddecay = (states[:-1] * after).sum((-1, -2), keepdim=True)
        return dnew, dw, dtail, ddecay


def delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """Gated delta rule over chunks; shapes as `delta_inputs` returns them; output (N, BH, C, D)."""
    t = _Inverse.apply(chunk_matrix(k, g, beta))  # type: ignore[no-untyped-call]
    u, w, tail, decay = chunk_terms(t, k, v, g, beta)
    new, states = _Scan.apply(u, w, tail, decay)  # type: ignore[no-untyped-call]
    out: Tensor = chunk_outputs(q, k, g, new, states[:-1])
    return out
