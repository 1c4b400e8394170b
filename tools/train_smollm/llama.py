"""A llama target in plain torch: whole packed rows for training, and one token of many rows for answering.

Weights have their GGUF names. Rows of q and k are put back into halves, so that RoPE is that of the drafter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from dflash_core.formats.gguf import open_gguf
from tools.train_demo.pieces import Piece, ffn_block, linear, rms, rope
from tools.train_demo.shapes import Weights

from .attention import attend


@dataclass(frozen=True)
class LlamaConfig:
    """Sizes of a llama target with tied embedding, by default those of SmolLM2-135M."""

    vocab: int = 49152
    hidden: int = 576
    layers: int = 30
    ffn: int = 1536
    heads: int = 9
    kv_heads: int = 3
    head_dim: int = 64
    rope_theta: float = 1e5
    context: int = 8192
    eps: float = 1e-5

    @staticmethod
    def of(path: Path) -> LlamaConfig:
        """The sizes in a file's header. Raises FormatError for a file that is not GGUF."""
        meta = open_gguf(path).metadata

        def number(key: str) -> int:
            value = meta["llama." + key]
            assert isinstance(value, int), f"{key} is {value!r}, expected a number"
            return value

        heads, hidden = number("attention.head_count"), number("embedding_length")
        return LlamaConfig(
            number("vocab_size"), hidden, number("block_count"), number("feed_forward_length"), heads,
            number("attention.head_count_kv"), hidden // heads, float(str(meta["llama.rope.freq_base"])),
            number("context_length"), float(str(meta["llama.attention.layer_norm_rms_epsilon"])),
        )  # fmt: skip


def halves(rows: Tensor, heads: int) -> Tensor:
    """Rows (heads * d, in) of q or k, whose rotated pairs are neighbours in the file, with pairs d / 2 apart."""
    return rows.view(heads, -1, 2, rows.shape[-1]).transpose(1, 2).reshape(rows.shape)


def prepared(c: LlamaConfig, weights: Weights, dtype: torch.dtype, device: torch.device) -> Weights:
    """The weights of a file as the passes read them: matrices in `dtype`, q, k and v as one, q and k by halves."""
    out = {}
    for name, w in weights.items():
        if name.endswith(("attn_q.weight", "attn_k.weight")):
            w = halves(w, c.heads if "attn_q" in name else c.kv_heads)
        out[name] = w.to(device, dtype if w.dim() > 1 else torch.float32)
    for b in (f"blk.{i}." for i in range(c.layers)):
        out[b + "attn_qkv.weight"] = torch.cat([out.pop(f"{b}attn_{one}.weight") for one in "qkv"])
    return out


def random_weights(c: LlamaConfig, seed: int = 0) -> Weights:
    """Weights of the file's shapes, for trying the recipe without a file."""
    rng = torch.Generator().manual_seed(seed)
    q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    block = {"attn_q": (q, c.hidden), "attn_k": (kv, c.hidden), "attn_v": (kv, c.hidden), "attn_output": (c.hidden, q),
             "ffn_gate": (c.ffn, c.hidden), "ffn_up": (c.ffn, c.hidden), "ffn_down": (c.hidden, c.ffn)}  # fmt: skip
    out = {"token_embd.weight": torch.randn(c.vocab, c.hidden, generator=rng) * 0.1}
    for i in range(c.layers):
        for name, (rows, columns) in block.items():
            out[f"blk.{i}.{name}.weight"] = torch.randn(rows, columns, generator=rng) / math.sqrt(columns)
        out |= {f"blk.{i}.{name}_norm.weight": torch.ones(c.hidden) for name in ("attn", "ffn")}
    return out | {"output_norm.weight": torch.ones(c.hidden)}


@Piece
def attention_block(
    h: Tensor, mask: Tensor, norm: Tensor, wqkv: Tensor, wo: Tensor, heads: int, kv_heads: int, head_dim: int,
    theta: float, eps: float,
) -> Tensor:  # fmt: skip
    """h (B, S, hidden) plus attention; mask (B, 1, S, S) is added to the scores."""
    batch, length, _ = h.shape
    qkv = linear(rms(h, norm, eps), wqkv).view(batch, length, heads + 2 * kv_heads, head_dim).transpose(1, 2)
    at = torch.arange(length, device=h.device)
    q, k, v = torch.split(qkv, [heads, kv_heads, kv_heads], dim=1)
    q = rope(q.float(), at, head_dim, theta).to(wqkv.dtype)
    k = rope(k.float(), at, head_dim, theta).to(wqkv.dtype).repeat_interleave(heads // kv_heads, 1)
    o = F.scaled_dot_product_attention(q, k, v.repeat_interleave(heads // kv_heads, 1), attn_mask=mask)
    return h + linear(o.transpose(1, 2).reshape(batch, length, -1), wo).float()


def llama_forward(
    c: LlamaConfig, w: Weights, ids: Tensor, seg: Tensor, captured_layers: tuple[int, ...] = ()
) -> tuple[Tensor, Tensor]:
    """Final hidden states after the output norm (B, S, hidden), and the captured layers' outputs, concatenated.

    ids, seg: (B, S) integers; nothing crosses the border of a document, which `seg` numbers. The layers after the last
    captured one are left out where any are captured; the hidden states are then those of that layer.
    """
    dtype, length = w["token_embd.weight"].dtype, ids.shape[1]
    at = torch.arange(length, device=ids.device)
    visible = (at[:, None] >= at) & (seg[:, None, :, None] == seg[:, None, None, :])
    mask = torch.where(visible, 0.0, -math.inf).to(dtype)
    h = F.embedding(ids, w["token_embd.weight"]).float()
    features = []
    for i in range(max(captured_layers) + 1 if captured_layers else c.layers):
        b = f"blk.{i}."
        h = attention_block(
            h, mask, w[b + "attn_norm.weight"], w[b + "attn_qkv.weight"], w[b + "attn_output.weight"],
            c.heads, c.kv_heads, c.head_dim, c.rope_theta, c.eps,
        )  # fmt: skip
        h = ffn_block(h, *(w[b + f"ffn_{one}.weight"] for one in ("norm", "gate", "up", "down")), c.eps)
        if i in captured_layers:
            features.append(h.to(dtype))
    hidden = rms(h, w["output_norm.weight"], c.eps)
    return hidden, torch.cat(features, dim=-1) if features else hidden.new_zeros(*hidden.shape[:2], 0)


@Piece
def _rotated(
    h: Tensor, norm: Tensor, wqkv: Tensor, at: Tensor, heads: int, kv_heads: int, head_dim: int, theta: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """q (B, heads, D), k and v (B, kv_heads, 1, D) of one token of every row, at the column `at` (1,)."""
    qkv = linear(rms(h, norm, eps), wqkv).view(len(h), heads + 2 * kv_heads, 1, head_dim)
    q, k, v = torch.split(qkv, [heads, kv_heads, kv_heads], dim=1)
    q = rope(q.float(), at, head_dim, theta).to(wqkv.dtype)
    return q[:, :, 0], rope(k.float(), at, head_dim, theta).to(wqkv.dtype), v


@Piece
def _mixed(h: Tensor, mixed: Tensor, wo: Tensor) -> Tensor:
    return h + linear(mixed, wo).float()


@dataclass(frozen=True)
class LlamaCache:
    """Keys and values of B rows of at most `length` columns: a tensor (B, kv_heads, length, head_dim) per layer."""

    keys: list[Tensor]
    values: list[Tensor]

    @staticmethod
    def empty(c: LlamaConfig, batch: int, length: int, dtype: torch.dtype, device: torch.device) -> LlamaCache:
        shape = (batch, c.kv_heads, length, c.head_dim)
        layers = range(c.layers)
        return LlamaCache(*([torch.zeros(shape, dtype=dtype, device=device) for _ in layers] for _ in range(2)))


def llama_step(c: LlamaConfig, w: Weights, cache: LlamaCache, ids: Tensor, first: Tensor, at: Tensor) -> Tensor:
    """Hidden states (B, hidden) after the output norm, of one token (B,) of every row at the column `at` (1,).

    A token sees the columns `first` (B,) to its own. Writes that column of the cache.
    """
    h = F.embedding(ids, w["token_embd.weight"]).float()
    for i, (keys, values) in enumerate(zip(cache.keys, cache.values, strict=True)):
        b = f"blk.{i}."
        q, k, v = _rotated(
            h, w[b + "attn_norm.weight"], w[b + "attn_qkv.weight"], at, c.heads, c.kv_heads, c.head_dim, c.rope_theta,
            c.eps,
        )  # fmt: skip
        keys.index_copy_(2, at, k)
        values.index_copy_(2, at, v)
        h = _mixed(h, attend(q, keys, values, first, at), w[b + "attn_output.weight"])
        h = ffn_block(h, *(w[b + f"ffn_{one}.weight"] for one in ("norm", "gate", "up", "down")), c.eps)
    return rms(h, w["output_norm.weight"], c.eps)
