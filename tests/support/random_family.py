"""Random models of the other architectures by Hugging Face, written as GGUF by the converter's rules.

What the sizes of a model do not determine is random too: fused or split experts, the type of routers, a tied head, the
base of the rotary positions, whether weights of experts are normalised.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor

from dflash_core.models.feed_forward import Experts
from support.random_model import VOCAB, Shape, add_hybrid, add_tokenizer, delta_net
from support.random_rope import Scaled

# Classes of configuration and model by module; imported where a model is made, since that takes seconds.
MODELS: Mapping[str, tuple[str, str, str]] = {
    "qwen3": ("qwen3", "Qwen3Config", "Qwen3ForCausalLM"),
    "qwen2": ("qwen2", "Qwen2Config", "Qwen2ForCausalLM"),
    "smollm3": ("smollm3", "SmolLM3Config", "SmolLM3ForCausalLM"),
    "mistral3": ("ministral3", "Ministral3Config", "Ministral3ForCausalLM"),
    "seed_oss": ("seed_oss", "SeedOssConfig", "SeedOssForCausalLM"),
    "phi3": ("phi3", "Phi3Config", "Phi3ForCausalLM"),
    "glm4": ("glm4", "Glm4Config", "Glm4ForCausalLM"),
    "granite": ("granite", "GraniteConfig", "GraniteForCausalLM"),
    "qwen3moe": ("qwen3_moe", "Qwen3MoeConfig", "Qwen3MoeForCausalLM"),
    "qwen35moe": ("qwen3_5_moe", "Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM"),
}
DENSE = ("qwen2", "qwen3", "smollm3", "mistral3", "granite", "seed_oss", "phi3", "glm4")
INTERLEAVED = ("smollm3", "mistral3", "granite")
"""Whose converter puts rows of queries and keys into the order of pairs."""
PARTIAL = ("phi3", "glm4")
"""Whose heads may be rotated in part."""
GROWING = {
    "rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
    "beta_fast": 32.0, "beta_slow": 1.0, "llama_4_scaling_beta": 0.4,
}  # fmt: skip
"""Of Mistral 3: queries grow every 40 positions."""
SCALES = {
    "attention_multiplier": ("attention.scale", 0.3), "embedding_multiplier": ("embedding_scale", 6.0),
    "residual_multiplier": ("residual_scale", 0.25), "logits_scaling": ("logit_scale", 2.0),
}  # fmt: skip
"""Of Granite: Hugging Face's names, the file's, and values."""
ROUTER_TYPES = (np.float32, np.float16, "bf16")


@dataclass(frozen=True)
class Drawn:
    """A configuration: sizes of mixers (see `random_model.Shape`), and of the feed-forward parts after them."""

    shape: Shape
    theta: float
    experts: int
    used: int
    width: int
    shared: int
    fused: bool
    normalised: bool
    router: int  # of ROUTER_TYPES

    @staticmethod
    def random(seed: int) -> Drawn:
        rng = np.random.default_rng(1000 + seed)
        experts = int(rng.integers(2, 20))
        return Drawn(
            Shape.random(seed),
            theta=float(rng.choice([1e4, 1e6, 5e6, 1e7])),
            experts=experts,
            used=int(rng.integers(1, min(experts, 6) + 1)),
            width=int(rng.choice([8, 16, 48])),
            shared=int(rng.choice([16, 40])),
            fused=bool(rng.integers(2)),
            normalised=bool(rng.integers(4)),
            router=int(rng.integers(len(ROUTER_TYPES))),
        )


def hugging_face(name: str, drawn: Drawn, seed: int, rope: Scaled | None = None) -> Any:
    """The model, random weights in float32; routers as the file's type rounds them."""
    torch.manual_seed(seed)
    shape = drawn.shape
    sizes: dict[str, Any] = {
        "vocab_size": VOCAB, "hidden_size": shape.hidden, "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim,
        "tie_word_embeddings": shape.tied, "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": drawn.theta},
    }  # fmt: skip
    if name in DENSE:
        sizes["intermediate_size"] = 2 * shape.hidden
        sizes["pad_token_id"] = None
    else:
        sizes |= {
            "num_experts": drawn.experts, "num_experts_per_tok": drawn.used, "moe_intermediate_size": drawn.width,
            "experts_implementation": "eager",
        }  # fmt: skip
    if name == "qwen3moe":
        sizes["norm_topk_prob"] = drawn.normalised
    if name == "qwen35moe":
        sizes |= shape.hybrid() | {"shared_expert_intermediate_size": drawn.shared}
        sizes["rope_parameters"] |= {
            "partial_rotary_factor": shape.rope / shape.head_dim, "mrope_section": [shape.rope // 2, 0, 0],
            "mrope_interleaved": True,
        }  # fmt: skip
    if name == "mistral3":
        sizes["rope_parameters"] |= GROWING if rope is None else GROWING | {"mscale": None}
    if name == "phi3":
        sizes["original_max_position_embeddings"] = 24  # so few that all texts of tests are long
    if name == "granite":
        sizes |= {key: value for key, (_, value) in SCALES.items()}
    if name in PARTIAL:
        sizes["rope_parameters"]["partial_rotary_factor"] = shape.rope / shape.head_dim
    scaled = {} if rope is None else long_rope(shape, rope, seed) if name == "phi3" else rope.hugging_face()
    module, *classes = MODELS[name]
    models = importlib.import_module(f"transformers.models.{module}.modeling_{module}")
    config, model_type = (getattr(models, one) for one in classes)
    made = config(**sizes)
    made.rope_parameters |= scaled  # after the checks of the class, which know no head_dim
    model = model_type(made).eval().float()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.add_(0.08 * torch.randn_like(parameter))
            if key.endswith(("mlp.gate.weight", "shared_expert_gate.weight")):
                parameter.copy_(rounded(parameter, drawn.router))
    return model


def long_rope(shape: Shape, rope: Scaled, seed: int) -> dict[str, Any]:
    """LongRoPE."""
    rng, pairs = np.random.default_rng(3000 + seed), shape.rope // 2
    long, short = (rng.uniform(1, high, pairs).astype(np.float32).tolist() for high in (8, 2))
    return {
        "rope_type": "longrope", "long_factor": long, "short_factor": short, "original_max_position_embeddings": 24,
        "attention_factor": rope.attention or 1.1, "factor": rope.factor,
    }  # fmt: skip


def rounded(values: Tensor, router: int) -> Tensor:
    return values.to((torch.float32, torch.float16, torch.bfloat16)[router]).float()


def write_gguf(name: str, model: Any, drawn: Drawn, path: Path, rope: Scaled | None = None) -> Path:
    shape, state = drawn.shape, dict(model.state_dict())
    hybrid = name == "qwen35moe"
    writer = gguf.GGUFWriter(path, name)
    writer.add_block_count(shape.layers)
    writer.add_context_length(512)
    writer.add_embedding_length(shape.hidden)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(drawn.theta)
    if name in PARTIAL:
        writer.add_rope_dimension_count(shape.rope)
    if rope and name == "phi3":
        told = model.config.rope_parameters
        writer.add_rope_scaling_orig_ctx_len(told["original_max_position_embeddings"])
        writer.add_rope_scaling_attn_factors(told["attention_factor"])
    elif rope:
        rope.write(writer, name)
    if name == "mistral3":
        if rope is None:
            Scaled("yarn", 2.0, 40, None, None).write(writer, name)
            writer.add_rope_scaling_yarn_log_mul(1.0)
        else:
            writer.add_attn_temperature_length(rope.original if rope.kind == "yarn" else 40)
        writer.add_attn_temperature_scale(0.4)
    if name == "granite":
        for key, value in SCALES.values():
            writer.add_float32(f"granite.{key}", value)
    if name in DENSE:
        writer.add_feed_forward_length(2 * shape.hidden)
    else:
        writer.add_expert_count(drawn.experts)
        writer.add_expert_used_count(drawn.used)
        writer.add_expert_feed_forward_length(drawn.width)
    if name == "qwen3moe" and not drawn.normalised:
        writer.add_expert_weights_norm(False)
    if hybrid:
        writer.add_expert_shared_feed_forward_length(drawn.shared)
        add_hybrid(writer, shape)
    add_tokenizer(writer, "qwen35" if hybrid else "qwen2")

    def put(to: str, values: Tensor, raw: int = 0) -> None:
        array = np.ascontiguousarray(values.detach().float().numpy())
        if raw == 2:
            halves = values.detach().to(torch.bfloat16).contiguous().view(torch.int16).numpy().view(np.uint8)
            writer.add_tensor(to, halves, raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(to, array.astype(ROUTER_TYPES[raw]))

    plus = 1 if hybrid else 0  # what the converter adds to norms
    put("token_embd.weight", state["model.embed_tokens.weight"])
    put("output_norm.weight", state["model.norm.weight"] + plus)
    for kind in ("long", "short"):
        if factors := model.config.rope_parameters.get(f"{kind}_factor"):
            put(f"rope_factors_{kind}.weight", torch.tensor(factors))
    if not shape.tied:
        put("output.weight", state["lm_head.weight"])
    for layer in range(shape.layers):
        ours, theirs = f"blk.{layer}.", f"model.layers.{layer}."
        put(ours + "attn_norm.weight", state[theirs + "input_layernorm.weight"] + plus)
        second = "post_attention_norm" if hybrid or name == "seed_oss" else "ffn_norm"
        put(f"{ours}{second}.weight", state[theirs + "post_attention_layernorm.weight"] + plus)
        for a, b in (("post_attention_norm", "post_self_attn_layernorm"), ("post_ffw_norm", "post_mlp_layernorm")):
            if (values := state.get(f"{theirs}{b}.weight")) is not None:
                put(f"{ours}{a}.weight", values)
        if name in DENSE:
            for a, b in (("gate", "gate"), ("up", "up"), ("up", "gate_up"), ("down", "down")):
                if (values := state.get(f"{theirs}mlp.{b}_proj.weight")) is not None:
                    put(f"{ours}ffn_{a}.weight", values)
        else:
            for to, values in experts(state, theirs + "mlp.", drawn).items():
                put(ours + to, values, drawn.router if "gate_inp" in to else 0)
        if hybrid and (layer + 1) % shape.interval:
            for to, values in delta_net(state, theirs + "linear_attn.", shape).items():
                put(ours + to, values)
            continue
        for a, b in (
            ("attn_q", "q"), ("attn_k", "k"), ("attn_v", "v"), ("attn_qkv", "qkv"), ("attn_output", "o"),
        ):  # fmt: skip
            for leaf in ("weight", "bias"):
                if (values := state.get(f"{theirs}self_attn.{b}_proj.{leaf}")) is not None:
                    turned = name in INTERLEAVED and b in "qk"
                    put(f"{ours}{a}.{leaf}", in_pairs(values, shape.head_dim) if turned else values)
        for part in "qk" if f"{theirs}self_attn.q_norm.weight" in state else "":
            put(f"{ours}attn_{part}_norm.weight", state[f"{theirs}self_attn.{part}_norm.weight"] + plus)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def in_pairs(rows: Tensor, head_dim: int) -> Tensor:
    """Rows of heads from the order of halves to that of pairs."""
    return rows.view(-1, 2, head_dim // 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def experts(state: Mapping[str, Tensor], theirs: str, drawn: Drawn) -> dict[str, Tensor]:
    """The tensors of one layer's experts by their names in a file."""
    gate_up = state[theirs + "experts.gate_up_proj"]
    found = {
        "ffn_gate_inp.weight": state[theirs + "gate.weight"],
        "ffn_down_exps.weight": state[theirs + "experts.down_proj"],
    }
    if drawn.fused:
        found["ffn_gate_up_exps.weight"] = gate_up
    else:
        found["ffn_gate_exps.weight"], found["ffn_up_exps.weight"] = gate_up.chunk(2, dim=1)
    if theirs + "shared_expert_gate.weight" in state:
        found["ffn_gate_inp_shexp.weight"] = state[theirs + "shared_expert_gate.weight"][0]
        for part in ("gate", "up", "down"):
            found[f"ffn_{part}_shexp.weight"] = state[f"{theirs}shared_expert.{part}_proj.weight"]
    return found


def first_close(target: Any, ids: Any, margin: float = 1e-5) -> int:
    """The first row whose experts were chosen by a margin below `margin`, so that rounding may change the choice; the
    number of rows if there is none."""
    margins: list[Tensor] = []
    session = target.session()
    for block in target.model.blk:
        if isinstance(block.ffn, Experts):
            block.ffn.router = Watched(block.ffn.router, margins)
    session.prefill([int(token) for token in ids])
    for block in target.model.blk:
        if isinstance(block.ffn, Experts):
            block.ffn.router = block.ffn.router.inner
    if not margins:
        return len(ids)
    close = (torch.stack(margins).amin(0) < margin).nonzero()
    return int(close[0]) if len(close) else len(ids)


class Watched:
    """A router that records by how much each row's last chosen expert was better than the best one left out."""

    def __init__(self, inner: Any, margins: list[Tensor]) -> None:
        self.inner, self.margins = inner, margins

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        shares = torch.softmax(x @ self.inner.ffn_gate_inp.T, -1).sort(-1, descending=True).values
        used = self.inner.spec.used
        if used < shares.shape[1]:
            self.margins.append(shares[:, used - 1] - shares[:, used])
        found: tuple[Tensor, Tensor] = self.inner(x)
        return found
