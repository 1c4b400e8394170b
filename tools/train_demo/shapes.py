"""The sizes of the two networks, and a table of their tensors.

A model is `Weights`, tensors by their names in the GGUF file; a table lists their shapes and storage types, so that
initialising, training, rounding and exporting are loops over one table. Linear weights are (out, in) as in torch.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import torch
from torch import Tensor

from dflash_core.arch.draft_heads import Convolution, Selector
from dflash_core.arch.kinds import Attention, DeltaNet, SwiGLU
from dflash_core.arch.qwen35 import DENSE as ARCHITECTURE
from dflash_core.arch.spec import LayerSpec, ModelSpec
from dflash_core.config import dflash_tensors

Weights = dict[str, Tensor]

Shapes = dict[str, tuple[tuple[int, ...], str]]
"""GGUF name -> (torch shape, storage type: F32, Q4_0, Q5_0 or Q8_0)."""


@dataclass(frozen=True)
class TargetConfig:
    """Sizes of a qwen35 target, by default the shipped one; `state` is the size of a K or V head of the delta net."""

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
        """Channels of the convolution: q, k and v side by side."""
        return (2 * self.k_heads + self.v_heads) * self.state

    @property
    def inner(self) -> int:
        """Width of all V heads together."""
        return self.v_heads * self.state

    def is_full(self, layer: int) -> bool:
        """Whether a layer is full attention; the others are gated delta nets."""
        return (layer + 1) % self.interval == 0


@dataclass(frozen=True)
class DraftConfig:
    """Sizes of a drafter. `captured_layers`: target layers that it reads; `sliding`: which of its own have a window.

    A DFlash 2 drafter has `conv` around its sub-layers and a `selector`.
    """

    hidden: int = 384
    layers: int = 3
    ffn: int = 512
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 128
    rope_theta: float = 1e7
    captured_layers: tuple[int, ...] = (1, 2, 3, 4, 5)
    block: int = 16
    mask_id: int = 0
    window: int = 0  # positions that a sliding-window layer sees; 0 where there is no such layer
    sliding: tuple[bool, ...] = (False, False, False)
    eps: float = 1e-6
    conv: Convolution | None = None
    selector: Selector | None = None
    vocab: int = 8192


def default_captured_layers(target_layers: int, count: int) -> tuple[int, ...]:
    """Layer ids spread evenly from the second layer to the third last, as published drafters choose them."""
    if count == 1:
        return (target_layers // 2,)
    return tuple(round(1 + i * (target_layers - 4) / (count - 1)) for i in range(count))


def target_shapes(c: TargetConfig) -> Shapes:
    """Every tensor of the target, in the order of the file."""
    tensors = spec(c).tensors()
    return {name: (shape, _target_type(re.sub(r"^blk\.\d+\.", "", name), shape)) for name, shape in tensors.items()}


def spec(c: TargetConfig) -> ModelSpec:
    """The decoder's description of the target."""
    attention = Attention(c.heads, c.kv_heads, c.head_dim, c.rope_dim, c.rope_theta, c.eps, gate="sigmoid")
    delta = DeltaNet(c.k_heads, c.v_heads, c.state, c.state, c.conv, c.eps)
    mixers = (attention if c.is_full(layer) else delta for layer in range(c.layers))
    layers = tuple(LayerSpec(mixer, SwiGLU(c.ffn), "post_attention_norm.weight") for mixer in mixers)
    return ModelSpec("DFlash demo", ARCHITECTURE.name, c.context, c.hidden, c.vocab, c.eps, layers)


def _target_type(part: str, shape: tuple[int, ...]) -> str:
    """Storage type of a tensor. `part`: its name without the layer."""
    if len(shape) == 1 or part == "ssm_conv1d.weight":
        return "F32"
    if part in ("ssm_alpha.weight", "ssm_beta.weight"):
        return "Q8_0"
    sharp = ("attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight", "output.weight")
    return "Q5_0" if part in sharp else "Q4_0"


def draft_shapes(c: DraftConfig, kind: str = "Q8_0") -> Shapes:
    """Every tensor of the drafter in the `dflash` flavour's names; `kind` stores the matrices."""
    mixer = Attention(c.heads, c.kv_heads, c.head_dim, c.head_dim, c.rope_theta, c.eps)
    layers = (LayerSpec(mixer, SwiGLU(c.ffn)),) * c.layers
    tensors = dflash_tensors(c.hidden, len(c.captured_layers), layers, c.conv)
    if c.selector:
        tensors |= c.selector.tensors(c.hidden, c.vocab)
    return {name: (shape, kind if len(shape) == 2 else "F32") for name, shape in tensors.items()}


def initialise(shapes: Shapes, layers: int, seed: int) -> Weights:
    """Random float32 weights. Outputs into the residual stream start small, so a fresh model is nearly its embedding.

    `ssm_a` holds log(-a) while it is trained, because a must stay negative; `export_form` turns it back.
    """
    rng = torch.Generator().manual_seed(seed)
    weights: Weights = {}
    for name, (shape, _) in shapes.items():
        if name.endswith("norm.weight"):
            weights[name] = torch.ones(shape)
        elif name.endswith("_conv_base"):  # at first the convolutions change nothing
            weights[name] = torch.zeros(shape)
            weights[name][:, 0] = 1
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
            if name.endswith(("attn_output.weight", "ssm_out.weight", "ffn_down.weight", "_conv_proj.weight")):
                scale /= math.sqrt(2 * layers)
            weights[name] = torch.randn(shape, generator=rng) * scale
    return weights


def export_form(weights: Weights) -> Weights:
    """The values that the file holds: float32 on the CPU, and `ssm_a` itself instead of log(-a)."""
    out = {name: tensor.detach().float().cpu() for name, tensor in weights.items()}
    return {name: -tensor.exp() if name.endswith("ssm_a") else tensor for name, tensor in out.items()}


def import_form(weights: Weights) -> Weights:
    """The inverse of `export_form`."""
    return {name: (-tensor).log() if name.endswith("ssm_a") else tensor for name, tensor in weights.items()}
