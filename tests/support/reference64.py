"""A model by its spec in numpy float64, over whole sequences: written from the definitions, for tests."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from dflash_core.arch.kinds import Attention, Experts, SwiGLU
from dflash_core.arch.spec import LayerSpec, ModelSpec
from dflash_core.formats.weights import WeightFile

Array = np.ndarray
Read = Callable[[str], Array]


def logits(spec: ModelSpec, file: WeightFile, ids: list[int]) -> Array:
    """(n, vocabulary) of a plain prompt."""

    def read(name: str) -> Array:
        return file.float32(name).astype(np.float64)

    table = read("token_embd.weight")
    h = table[ids] * spec.embedding_scale
    given = _per_layer(spec, read, ids, h)
    caches: dict[int, tuple[Array, Array]] = {}
    for index, layer in enumerate(spec.layers):
        h = _layer(index, layer, spec.rms_eps, read, h, None if given is None else given[:, index], caches)
    out = _rms(h, read("output_norm.weight"), spec.rms_eps) @ (table if spec.tied_output else read("output.weight")).T
    out = out * spec.logit_scale
    out = spec.softcap * np.tanh(out / spec.softcap) if spec.softcap else out
    out[:, list(spec.suppressed)] = -np.inf
    return out


def _rms(x: Array, weight: Array | float, eps: float) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _per_layer(spec: ModelSpec, read: Read, ids: list[int], h: Array) -> Array | None:
    width = spec.per_layer_input
    if not width:
        return None
    shape = (len(ids), spec.block_count, width)
    table = read("per_layer_token_embd.weight")[ids].reshape(shape) * math.sqrt(width)
    projected = (h @ read("per_layer_model_proj.weight").T).reshape(shape) / math.sqrt(spec.embedding_length)
    return (table + _rms(projected, read("per_layer_proj_norm.weight"), spec.rms_eps)) / math.sqrt(2)


def _layer(
    index: int, layer: LayerSpec, eps: float, read: Read, h: Array, given: Array | None, caches: dict[int, Any]
) -> Array:
    def own(name: str) -> Array:
        return read(f"blk.{index}.{name}")

    def normed(x: Array, name: str) -> Array:
        return _rms(x, own(name), eps) if name else x

    assert isinstance(layer.mixer, Attention)
    mixed = _attention(index, layer.mixer, read, own, normed(h, "attn_norm.weight"), caches)
    h = h + normed(mixed, layer.post_attn_norm)
    out = normed(_feed_forward(layer.ffn, own, normed(h, layer.ffn_norm), h), layer.ffn_own_norm)
    if layer.beside is not None:
        beside = layer.beside
        out = out + normed(_feed_forward(beside.part, own, normed(h, beside.norm), h), beside.post_norm)
    h = h + normed(out, layer.post_ffn_norm)
    if given is not None:
        inner = _gelu(h @ own("inp_gate.weight").T) * given
        h = h + _rms(inner @ own("proj.weight").T, own("post_norm.weight"), eps)
    return h * own("layer_output_scale.weight") if layer.output_scale else h


def _rotated(x: Array, spec: Attention, read: Read) -> Array:
    """`x` (n, heads, head size) at positions 0.., each pair (i, i + rotary / 2) or (2i, 2i + 1) by its own angle."""
    half = spec.rotary // 2
    frequencies = spec.rope_base ** (-2 * np.arange(half) / spec.rotary)
    factor = 1.0
    if spec.scaling is not None:
        frequencies = frequencies * spec.scaling.shares(half, spec.rope_base)
        factor = spec.scaling.attention
    if spec.rope_factors:
        frequencies = frequencies / read("rope_freqs.weight")
    angles = np.arange(len(x))[:, None] * frequencies.astype(np.float32).astype(np.float64)
    cos, sin = factor * np.cos(angles)[:, None], factor * np.sin(angles)[:, None]
    first = slice(0, spec.rotary, 2) if spec.interleaved else slice(half)
    second = slice(1, spec.rotary, 2) if spec.interleaved else slice(half, spec.rotary)
    a, b, out = x[..., first], x[..., second], x.copy()
    out[..., first], out[..., second] = a * cos - b * sin, b * cos + a * sin
    return out


def _attention(index: int, spec: Attention, read: Read, own: Read, x: Array, caches: dict[int, Any]) -> Array:
    n, heads, size = len(x), spec.heads, spec.head_dim

    def project(name: str) -> Array:
        rows = x @ own(f"{name}.weight").T
        return (rows + own(f"{name}.bias") if name in spec.biases else rows).reshape(n, -1, size)

    def normed(rows: Array, name: str) -> Array:
        return _rms(rows, own(name), spec.eps) if spec.qk_norm else rows

    q = project("attn_q")
    gates: Array | float = 1.0
    if spec.gate == "sigmoid":
        q, gates = q[:, 0::2], _sigmoid(q[:, 1::2])
    elif spec.gate == "softplus":
        gates = np.log1p(np.exp(x @ own("attn_gate.weight").T))[..., None]
    q = _rotated(normed(q, "attn_q_norm.weight"), spec, read)
    if spec.kv_from is None:
        k = project("attn_k")
        v = k if spec.key_is_value else project("attn_v")
        v = _rms(v, 1.0, spec.eps) if spec.v_norm else v
        caches[index] = _rotated(normed(k, "attn_k_norm.weight"), spec, read), v
    k, v = caches[index if spec.kv_from is None else spec.kv_from]
    scale = 1 / math.sqrt(size) if spec.scale is None else spec.scale
    sinks = own("attn_sinks.weight") if spec.sinks else None
    out = np.empty((n, heads, size))
    for head in range(heads):
        group = head // (heads // spec.kv_heads)
        for at in range(n):
            first = max(0, at - spec.window + 1) if spec.window else 0
            scores = k[first : at + 1, group] @ q[at, head] * scale
            top = max(scores.max(), sinks[head] if sinks is not None else -math.inf)
            weights = np.exp(scores - top)
            total = weights.sum() + (math.exp(sinks[head] - top) if sinks is not None else 0)
            out[at, head] = weights / total @ v[first : at + 1, group]
    mixed = (out * gates).reshape(n, -1) @ own("attn_output.weight").T
    return mixed + own("attn_output.bias") if "attn_output" in spec.biases else mixed


def _activated(name: str, gate: Array, up: Array) -> Array:
    if name == "silu":
        return gate * _sigmoid(gate) * up
    if name == "gelu_tanh":
        return _gelu(gate) * up
    gate, up = np.minimum(gate, 7.0), np.clip(up, -7.0, 7.0)
    return gate * _sigmoid(1.702 * gate) * (up + 1)


def _feed_forward(spec: Any, own: Read, x: Array, h: Array) -> Array:
    if isinstance(spec, SwiGLU):
        gate, up = (x @ own(f"ffn_{part}.weight").T for part in ("gate", "up"))
        return _activated(spec.activation, gate, up) @ own("ffn_down.weight").T
    assert isinstance(spec, Experts)
    routed = x
    if spec.router_scale:
        routed = _rms(h, 1.0, spec.eps) * own("ffn_gate_inp.scale") / math.sqrt(h.shape[-1])
    scores = routed @ own("ffn_gate_inp.weight").T + (own("ffn_gate_inp.bias") if spec.router_bias else 0)
    shares = _sigmoid(scores) if spec.router == "sigmoid" else np.exp(scores - scores.max(-1, keepdims=True))
    if spec.router == "softmax":
        shares = shares / shares.sum(-1, keepdims=True)
    order = shares + own("exp_probs_b.bias") if spec.choice_bias else scores
    if spec.fused:
        gate_up = own("ffn_gate_up_exps.weight")
        gate_w, up_w = gate_up[:, : spec.width], gate_up[:, spec.width :]
        biases = own("ffn_gate_up_exps.bias") if spec.biases else np.zeros((spec.count, 2 * spec.width))
        gate_b, up_b = biases[:, : spec.width], biases[:, spec.width :]
    else:
        gate_w, up_w = own("ffn_gate_exps.weight"), own("ffn_up_exps.weight")
        none = np.zeros((spec.count, spec.width))
        gate_b, up_b = (own(f"ffn_{part}_exps.bias") if spec.biases else none for part in ("gate", "up"))
    down_w = own("ffn_down_exps.weight")
    down_b = own("ffn_down_exps.bias") if spec.biases else np.zeros((spec.count, x.shape[-1]))
    more = own("ffn_down_exps.scale") if spec.expert_scales else np.ones(spec.count)
    out = np.zeros_like(x)
    for at in range(len(x)):
        chosen = np.argsort(-order[at], kind="stable")[: spec.used]
        total = shares[at, chosen].sum() if spec.normalised else 1.0
        for expert in chosen:
            inner = _activated(
                spec.activation, gate_w[expert] @ x[at] + gate_b[expert], up_w[expert] @ x[at] + up_b[expert]
            )
            share = shares[at, expert] / total * spec.scale * more[expert]
            out[at] += share * (down_w[expert] @ inner + down_b[expert])
    if spec.shared:
        gate, up = (x @ own(f"ffn_{part}_shexp.weight").T for part in ("gate", "up"))
        shared = _activated(spec.activation, gate, up) @ own("ffn_down_shexp.weight").T
        out += shared * (_sigmoid(x @ own("ffn_gate_inp_shexp.weight"))[:, None] if spec.shared_gate else 1)
    return out
