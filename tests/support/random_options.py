"""Small random models with the options of `arch.kinds` combined at random, as files of an architecture of the tests."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from dflash_core.arch.architecture import Architecture
from dflash_core.arch.kinds import PROJECTIONS, Activation, Attention, Experts, FeedForward, SwiGLU
from dflash_core.arch.rope import Linear, Llama3, Scaling, Yarn
from dflash_core.arch.spec import Branch, LayerSpec, ModelSpec

NAME, VOCABULARY, CONTEXT = "options", 320, 512
ACTIVATIONS: tuple[Activation, ...] = ("silu", "gelu_tanh", "clamped_swiglu")
EPS = 1e-6
HEAD_DIMS = (64, 64, 64, 128, 256, 512)  # what a card has kernels for, the cheapest most often


def architecture(spec: ModelSpec) -> Architecture:
    """Reads every file as `spec`."""
    return Architecture(NAME, "a model of the tests", lambda keys, head: spec)


def drawn(rng: np.random.Generator) -> ModelSpec:
    """A model of two to four layers whose options are drawn one by one."""

    def often(share: float = 0.5) -> bool:
        return bool(rng.random() < share)

    def scaling() -> Scaling | None:
        kinds = (None, Linear(2.0), Llama3(4.0, 48, 1.0, 4.0), Yarn(4.0, 64, 1.2, truncate=often()))
        return kinds[int(rng.integers(len(kinds)))]

    def attention() -> Attention:
        kv_heads, head_dim = int(rng.choice([1, 2])), int(rng.choice(HEAD_DIMS))
        found = Attention(
            kv_heads * int(rng.choice([1, 2, 3, 4])), kv_heads, head_dim, 64 * int(rng.integers(1, head_dim // 64 + 1)),
            float(rng.choice([1e4, 1e5])), EPS,
            qk_norm=often(), sinks=often(), rope_factors=often(0.3), v_norm=often(0.3), scaling=scaling(),
            scale=1.6 * head_dim**-0.5 if often(0.3) else None, gate=str(rng.choice(["none", "sigmoid", "softplus"])),
            biases=tuple(name for name in PROJECTIONS if often(0.4)), key_is_value=often(0.2),
        )  # fmt: skip
        # A bias beside sigmoid gates is refused; rows in pairs are those of llama and glm4, without what else has an
        # order.
        without = {"attn_v"} if found.key_is_value else set()
        without |= {"attn_q"} if found.gate == "sigmoid" else set()
        whole = head_dim % found.rotary == 0 and found.gate != "sigmoid"
        pairs = whole and not found.qk_norm and not found.key_is_value and often(0.7)
        return replace(found, biases=tuple(one for one in found.biases if one not in without), interleaved=pairs)

    hidden, full = int(rng.choice([64, 96, 128])), attention()
    window = replace(attention() if often() else full, window=int(rng.choice([5, 24, 70])), rope_factors=False)
    after = often()

    def ffn() -> FeedForward:
        activation = ACTIVATIONS[int(rng.integers(len(ACTIVATIONS)))]
        if often():
            return SwiGLU(int(rng.choice([96, 160])), activation)
        sigmoid, shared, gated = often(), 32 * often(), often()
        return Experts(
            int(rng.choice([8, 12])), int(rng.choice([2, 3])), int(rng.choice([32, 64])), shared, often(),
            1.5 if often() else 1.0, often(0.3), activation,
            router="sigmoid" if sigmoid else "softmax", router_bias=often(), choice_bias=sigmoid and often(),
            expert_scales=often(0.3), shared_gate=gated, biases=often() and not shared,
            router_scale=often(0.3) and not (shared and gated), eps=EPS,
        )  # fmt: skip

    per_layer = 32 if often(0.3) else 0

    layers = [
        LayerSpec(
            window if often() else full, ffn(), output_scale=often(0.3), per_layer_input=per_layer,
            post_attn_norm="post_attention_norm.weight" if after else "",
            post_ffn_norm="post_ffw_norm.weight" if after and often(0.9) else "",
        )
        for _ in range(int(rng.integers(2, 5)))
    ]  # fmt: skip
    for index, layer in enumerate(layers):
        own = [at for at in range(index) if layers[at].mixer == layer.mixer]
        if own and often(0.4):
            layer = replace(layer, mixer=replace(layer.mixer, kv_from=own[-1]))
        if isinstance(layer.ffn, Experts) and often(0.4):
            dense = Branch(SwiGLU(64, "gelu_tanh"), "ffn_norm.weight", "post_ffw_norm_1.weight" * often())
            own_norm = "post_ffw_norm_2.weight" * often()
            layer = replace(layer, ffn_norm="pre_ffw_norm_2.weight", beside=dense, ffn_own_norm=own_norm)
        layers[index] = layer
    return ModelSpec(
        "Options", NAME, CONTEXT, hidden, VOCABULARY, EPS, tuple(layers), tied_output=often(),
        per_layer_input=per_layer, embedding_scale=math.sqrt(hidden) if often() else 1.0,
        logit_scale=0.7 if often(0.3) else 1.0, softcap=10.0 if often() else 0.0,
        suppressed=(3, 300) if often(0.3) else (),
    )  # fmt: skip


def write(spec: ModelSpec, path: Path, rng: np.random.Generator) -> Path:
    """A file of random tensors for `spec`: matrices in F16, or as Q8_0 where their rows are whole blocks."""
    writer = gguf.GGUFWriter(path, NAME)
    writer.add_name(spec.name)
    for name, shape in spec.tensors().items():
        writer.add_tensor(name, *_stored(name, shape, rng))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _stored(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    values = rng.standard_normal(shape).astype(np.float32)
    one = len(shape) == 1
    if "norm" in name or name.endswith(("scale.weight", ".scale")):
        values = 1 + 0.2 * values
    elif "rope_freqs" in name:
        values = 1 + 3 * rng.random(shape).astype(np.float32)
    elif not one and not name.endswith(".bias"):
        values *= shape[-1] ** -0.5
    if one or name.endswith((".bias", "gate_inp.weight")):
        return np.ascontiguousarray(values), None, gguf.GGMLQuantizationType.F32
    if shape[-1] % 32 == 0 and rng.random() < 0.5:
        data = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
        return data, None, gguf.GGMLQuantizationType.Q8_0
    return values.astype(np.float16), None, None
