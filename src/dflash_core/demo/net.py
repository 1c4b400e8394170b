"""Trainable twins of the two architectures, as functions over dictionaries of tensors named like the GGUF file.

A model is `dict[str, Tensor]`; `target_shapes` and `draft_shapes` list its names, shapes and storage types, so that
initialising, training, quantising and exporting are loops over one table. Linear weights are (out, in) as in torch.
Sequences are packed: `seg` (B, S) numbers the document of every position, and nothing crosses a document's border.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Weights = dict[str, Tensor]

CHUNK = 64
"""Tokens handled as one block by the chunked delta rule."""

RESET = -40.0
"""Log-decay at a document's first token: exp(-40) empties the recurrent state, and float32 sums stay exact enough."""


@dataclass(frozen=True)
class TargetConfig:
    vocab: int = 8192
    hidden: int = 384
    layers: int = 8
    ffn: int = 768
    heads: int = 2
    kv_heads: int = 1
    head_dim: int = 256
    rope_dim: int = 64
    rope_theta: float = 1e7
    k_heads: int = 2
    v_heads: int = 6
    state: int = 128
    conv: int = 4
    interval: int = 4
    context: int = 2048
    eps: float = 1e-6

    @property
    def conv_dim(self) -> int:
        return (2 * self.k_heads + self.v_heads) * self.state

    @property
    def inner(self) -> int:
        return self.v_heads * self.state

    def is_full(self, layer: int) -> bool:
        return (layer + 1) % self.interval == 0


@dataclass(frozen=True)
class DraftConfig:
    hidden: int = 384
    layers: int = 3
    ffn: int = 512
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 128
    rope_theta: float = 1e7
    taps: tuple[int, ...] = (1, 2, 3, 4, 5)
    block: int = 16
    mask_id: int = 0
    window: int = 0
    sliding: tuple[bool, ...] = (False, False, False)
    eps: float = 1e-6


def default_taps(target_layers: int, count: int) -> tuple[int, ...]:
    """Layer ids spread evenly from the second layer to the third last, as published drafters choose them."""
    if count == 1:
        return (target_layers // 2,)
    return tuple(round(1 + i * (target_layers - 4) / (count - 1)) for i in range(count))


# ---------------------------------------------------------------------------------------------------------------
# tables of tensors


def target_shapes(c: TargetConfig) -> dict[str, tuple[tuple[int, ...], str]]:
    """GGUF name -> (torch shape, storage type) of every tensor of the target."""
    out: dict[str, tuple[tuple[int, ...], str]] = {"token_embd.weight": ((c.vocab, c.hidden), "Q4_0")}
    for i in range(c.layers):
        b = f"blk.{i}."
        out[b + "attn_norm.weight"] = ((c.hidden,), "F32")
        if c.is_full(i):
            out[b + "attn_q.weight"] = ((2 * c.heads * c.head_dim, c.hidden), "Q5_0")
            out[b + "attn_k.weight"] = ((c.kv_heads * c.head_dim, c.hidden), "Q5_0")
            out[b + "attn_v.weight"] = ((c.kv_heads * c.head_dim, c.hidden), "Q5_0")
            out[b + "attn_output.weight"] = ((c.hidden, c.heads * c.head_dim), "Q5_0")
            out[b + "attn_q_norm.weight"] = ((c.head_dim,), "F32")
            out[b + "attn_k_norm.weight"] = ((c.head_dim,), "F32")
        else:
            out[b + "attn_qkv.weight"] = ((c.conv_dim, c.hidden), "Q4_0")
            out[b + "attn_gate.weight"] = ((c.inner, c.hidden), "Q4_0")
            out[b + "ssm_conv1d.weight"] = ((c.conv_dim, c.conv), "F32")
            out[b + "ssm_dt.bias"] = ((c.v_heads,), "F32")
            out[b + "ssm_a"] = ((c.v_heads,), "F32")
            out[b + "ssm_beta.weight"] = ((c.v_heads, c.hidden), "Q8_0")
            out[b + "ssm_alpha.weight"] = ((c.v_heads, c.hidden), "Q8_0")
            out[b + "ssm_norm.weight"] = ((c.state,), "F32")
            out[b + "ssm_out.weight"] = ((c.hidden, c.inner), "Q4_0")
        out[b + "post_attention_norm.weight"] = ((c.hidden,), "F32")
        out[b + "ffn_gate.weight"] = ((c.ffn, c.hidden), "Q4_0")
        out[b + "ffn_up.weight"] = ((c.ffn, c.hidden), "Q4_0")
        out[b + "ffn_down.weight"] = ((c.hidden, c.ffn), "Q4_0")
    out["output_norm.weight"] = ((c.hidden,), "F32")
    out["output.weight"] = ((c.vocab, c.hidden), "Q5_0")
    return out


def draft_shapes(c: DraftConfig, kind: str = "Q8_0") -> dict[str, tuple[tuple[int, ...], str]]:
    """GGUF name -> (torch shape, storage type) of every tensor of the drafter, in the `dflash` flavour's names."""
    out: dict[str, tuple[tuple[int, ...], str]] = {
        "fc.weight": ((c.hidden, len(c.taps) * c.hidden), kind),
        "enc.output_norm.weight": ((c.hidden,), "F32"),
    }
    for i in range(c.layers):
        b = f"blk.{i}."
        out[b + "attn_norm.weight"] = ((c.hidden,), "F32")
        out[b + "attn_q.weight"] = ((c.heads * c.head_dim, c.hidden), kind)
        out[b + "attn_k.weight"] = ((c.kv_heads * c.head_dim, c.hidden), kind)
        out[b + "attn_v.weight"] = ((c.kv_heads * c.head_dim, c.hidden), kind)
        out[b + "attn_output.weight"] = ((c.hidden, c.heads * c.head_dim), kind)
        out[b + "attn_q_norm.weight"] = ((c.head_dim,), "F32")
        out[b + "attn_k_norm.weight"] = ((c.head_dim,), "F32")
        out[b + "ffn_norm.weight"] = ((c.hidden,), "F32")
        out[b + "ffn_gate.weight"] = ((c.ffn, c.hidden), kind)
        out[b + "ffn_up.weight"] = ((c.ffn, c.hidden), kind)
        out[b + "ffn_down.weight"] = ((c.hidden, c.ffn), kind)
    out["output_norm.weight"] = ((c.hidden,), "F32")
    return out


def initialise(shapes: dict[str, tuple[tuple[int, ...], str]], layers: int, seed: int) -> Weights:
    """Random float32 weights. Outputs into the residual stream start small, so a fresh model is nearly its embedding.

    `ssm_a` holds log(-a) while it is trained, because a must stay negative; `export_form` turns it back.
    """
    rng = torch.Generator().manual_seed(seed)
    weights: Weights = {}
    for name, (shape, _) in shapes.items():
        if name.endswith("norm.weight"):
            weights[name] = torch.ones(shape)
        elif name.endswith("ssm_a"):
            weights[name] = torch.empty(shape).uniform_(1, 16, generator=rng).log()
        elif name.endswith("ssm_dt.bias"):
            step = torch.empty(shape).uniform_(math.log(1e-3), math.log(0.1), generator=rng).exp()
            weights[name] = step + torch.log(-torch.expm1(-step))  # the inverse of softplus
        elif name.endswith("ssm_conv1d.weight"):
            weights[name] = torch.empty(shape).uniform_(-0.5, 0.5, generator=rng)
        elif name == "token_embd.weight":
            weights[name] = torch.randn(shape, generator=rng) * 0.3
        elif name == "output.weight":
            weights[name] = torch.randn(shape, generator=rng) * 0.02
        else:
            scale = 0.7 / math.sqrt(shape[1])
            if name.endswith(("attn_output.weight", "ssm_out.weight", "ffn_down.weight")):
                scale /= math.sqrt(2 * layers)
            weights[name] = torch.randn(shape, generator=rng) * scale
    return weights


def export_form(weights: Weights) -> Weights:
    """The values that the file holds: float32 on the CPU, and `ssm_a` as the decay factor itself."""
    out = {name: tensor.detach().float().cpu() for name, tensor in weights.items()}
    return {name: -tensor.exp() if name.endswith("ssm_a") else tensor for name, tensor in out.items()}


def import_form(weights: Weights) -> Weights:
    """The inverse of `export_form`."""
    return {name: (-tensor).log() if name.endswith("ssm_a") else tensor for name, tensor in weights.items()}


# ---------------------------------------------------------------------------------------------------------------
# quantisation, as ggml rounds


def fake_quant(blocks: Tensor, kind: str) -> Tensor:
    """What the file would give back for float32 `blocks` (n, 32): the exact rounding of Q4_0, Q5_0 and Q8_0."""
    if kind == "Q8_0":
        d = blocks.abs().amax(dim=1, keepdim=True) / 127
        inverse = torch.where(d == 0, 0, 1 / d)
        scaled = blocks * inverse
        q = torch.trunc(scaled.abs() + 0.5) * scaled.sign()
        return q * d.half().float()
    half = {"Q4_0": 8, "Q5_0": 16}[kind]
    at = blocks.abs().argmax(dim=1, keepdim=True)
    d = blocks.gather(1, at) / -half
    inverse = torch.where(d == 0, 0, 1 / d)
    q = torch.trunc(blocks * inverse + (half + 0.5)).clamp(0, 2 * half - 1) - half
    return q * d.half().float()


def effective(
    weights: Weights, shapes: dict[str, tuple[tuple[int, ...], str]], strength: float, dtype: torch.dtype
) -> Weights:
    """The weights the forward pass uses: `strength` blends in the rounded values, gradients pass straight through.

    All tensors of one storage type are rounded as one long list of blocks: a handful of kernels instead of hundreds.
    """
    out = dict(weights)
    for kind in ("Q4_0", "Q5_0", "Q8_0"):
        names = [name for name, (_, k) in shapes.items() if k == kind]
        if not names:
            continue
        flat = torch.cat([weights[name].reshape(-1, 32) for name in names])
        if strength > 0:
            flat = flat + strength * (fake_quant(flat.detach(), kind) - flat.detach())
        parts = torch.split(flat.to(dtype), [weights[name].numel() // 32 for name in names])
        out.update({name: part.view(weights[name].shape) for name, part in zip(names, parts, strict=True)})
    return out


def quantised(weights: Weights, shapes: dict[str, tuple[tuple[int, ...], str]]) -> Weights:
    """Float32 weights with every quantised tensor replaced by what its file form gives back."""
    return {
        name: fake_quant(w.detach().reshape(-1, 32), shapes[name][1]).view(w.shape)
        if shapes[name][1] != "F32"
        else w.detach()
        for name, w in weights.items()
    }


# ---------------------------------------------------------------------------------------------------------------
# pieces. Each is a pure function of tensors, so one compiled copy serves every layer.

_COMPILE = False


class _Piece:
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
    global _COMPILE
    _COMPILE = enabled


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square normalisation over the last dimension, in float32."""
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def linear(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x.to(weight.dtype), weight)


def rope(x: Tensor, positions: Tensor, rotated: int, theta: float) -> Tensor:
    """Rotate the first `rotated` dims of x (..., T, D), pairing i with i + rotated/2, at `positions` (..., T)."""
    half = rotated // 2
    frequency = theta ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = positions[..., None].float() * frequency
    cos, sin = angle.cos(), angle.sin()
    a, b = x[..., :half], x[..., half:rotated]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., rotated:]], dim=-1)


@_Piece
def ffn_block(h: Tensor, norm: Tensor, gate: Tensor, up: Tensor, down: Tensor, eps: float) -> Tensor:
    m = rms(h, norm, eps).to(gate.dtype)
    return h + linear(F.silu(linear(m, gate)) * linear(m, up), down).float()


@_Piece
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


@_Piece
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


@_Piece
def chunk_matrix(k: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """The strictly lower A (N, BH, C, C) of the chunked delta rule: A_ij = beta_i (k_i . k_j) exp(G_i - G_j)."""
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=k.device).tril(-1)
    decay = torch.where(lower, g[..., :, None] - g[..., None, :], -math.inf).exp()
    return (k * beta[..., None]) @ k.transpose(-1, -2) * decay


@_Piece
def chunk_terms(t: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """U, W, the keys decayed to the chunk's end, and the chunk's whole decay (N, BH, 1, 1)."""
    u = t @ (v * beta[..., None])
    w = t @ (k * (beta * g.exp())[..., None])
    tail = k * (g[..., -1:] - g).exp()[..., None]
    return u, w, tail, g[..., -1].exp()[..., None, None]


@_Piece
def chunk_outputs(q: Tensor, k: Tensor, g: Tensor, new: Tensor, state: Tensor) -> Tensor:
    """O = (e^G q) S + ((q k^T) exp(G_i - G_j)) new, the diagonal included."""
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    decay = torch.where(lower, g[..., :, None] - g[..., None, :], -math.inf).exp()
    return (q * g.exp()[..., None]) @ state + (q @ k.transpose(-1, -2) * decay) @ new


@_Piece
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


# ---------------------------------------------------------------------------------------------------------------
# the target


def target_forward(
    c: TargetConfig, w: Weights, ids: Tensor, seg: Tensor, taps: tuple[int, ...] = ()
) -> tuple[Tensor, Tensor]:
    """Final hidden states after the output norm (B, S, hidden) and the tapped layers' outputs (B, S, taps * hidden).

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
        if i in taps:
            features.append(h[:, :length].to(w["output.weight"].dtype))
    hidden = rms(h[:, :length], w["output_norm.weight"], c.eps)
    empty = hidden.new_zeros(*hidden.shape[:2], 0)
    return hidden, torch.cat(features, dim=-1) if features else empty


@_Piece
def token_losses(hidden: Tensor, head: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of each row: hidden (n, hidden), labels (n,) -> (n,) float32."""
    return F.cross_entropy(linear(hidden, head).float(), labels, reduction="none")


@dataclass
class DecodeState:
    """Recurrent state of a batch of sequences that advance together: one entry per layer of its kind."""

    conv: list[Tensor]
    """(B, conv - 1, conv_dim) raw rows, oldest first"""
    delta: list[Tensor]
    """(B, Hv, D, D)"""
    keys: list[Tensor]
    """(B, kv_heads, T, head_dim)"""
    values: list[Tensor]
    at: int = 0


def decode_state(c: TargetConfig, batch: int, length: int, device: torch.device, dtype: torch.dtype) -> DecodeState:
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


@_Piece
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


# ---------------------------------------------------------------------------------------------------------------
# the drafter


@_Piece
def fuse_features(features: Tensor, fc: Tensor, norm: Tensor, eps: float) -> Tensor:
    """(B, S, taps * hidden) -> (B, S, hidden): what every drafter layer reads as its context."""
    return rms(linear(features, fc), norm, eps).to(fc.dtype)


@_Piece
def draft_attention(
    h: Tensor, context: Tensor, seg: Tensor, anchor: Tensor, anchor_seg: Tensor, norm: Tensor, wq: Tensor, wk: Tensor,
    wv: Tensor, wo: Tensor, qn: Tensor, kn: Tensor, heads: int, kv_heads: int, head_dim: int, theta: float,
    window: int, eps: float,
) -> Tensor:  # fmt: skip
    """Blocks h (B, A, L, hidden) look at the context before their anchor and at themselves.

    window 0: all of the context, and the whole block in both directions; else causal, `window` positions wide.
    """
    batch, count, block, _ = h.shape
    length = context.shape[1]
    hn = rms(h, norm, eps).to(wq.dtype)
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
    return h + linear(o.reshape(batch, count, block, heads * head_dim), wo).float()


def draft_forward(
    c: DraftConfig, w: Weights, features: Tensor, seg: Tensor, anchor: Tensor, anchor_seg: Tensor, noise: Tensor
) -> Tensor:
    """Normalised outputs (B, A, block, hidden) whose rows 1.. go through the target's head.

    features (B, S, taps * hidden) and seg (B, S): the context. anchor, anchor_seg (B, A): each block's start and
    document. noise (B, A, block, hidden): the target's embeddings of [anchor token, mask, mask, ...].
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
        )  # fmt: skip
        h = ffn_block(
            h, of("ffn_norm.weight"), of("ffn_gate.weight"), of("ffn_up.weight"), of("ffn_down.weight"), c.eps
        )
    return rms(h, w["output_norm.weight"], c.eps)
