"""Random Qwen3.5 models: made by Hugging Face, written as GGUF by the converter's rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import torch
from torch import Tensor

from support.random_rope import Scaled

if TYPE_CHECKING:
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5ForCausalLM

VOCAB = 320


@dataclass(frozen=True)
class Shape:
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    k_heads: int
    v_heads: int
    k_size: int
    v_size: int
    kernel: int
    interval: int
    rope: int
    tied: bool

    @staticmethod
    def random(seed: int) -> Shape:
        """A configuration drawn from what the architecture allows."""
        rng = np.random.default_rng(seed)
        kv_heads, k_heads = int(rng.integers(1, 4)), int(rng.integers(1, 4))
        head_dim = int(rng.choice([16, 32, 64]))
        return Shape(
            layers=int(rng.integers(2, 7)),
            hidden=int(rng.choice([32, 64, 96, 160])),
            heads=kv_heads * int(rng.integers(1, 5)),
            kv_heads=kv_heads,
            head_dim=head_dim,
            k_heads=k_heads,
            v_heads=k_heads * int(rng.integers(1, 5)),
            k_size=int(rng.choice([8, 16, 32])),
            v_size=int(rng.choice([8, 16, 32])),
            kernel=int(rng.integers(2, 6)),
            interval=int(rng.integers(2, 5)),
            rope=head_dim // int(rng.choice([1, 2, 4])),
            tied=bool(rng.integers(2)),
        )

    def hybrid(self) -> dict[str, Any]:
        """Hugging Face's settings of delta nets and attention taking turns."""
        return {
            "linear_num_key_heads": self.k_heads, "linear_num_value_heads": self.v_heads,
            "linear_key_head_dim": self.k_size, "linear_value_head_dim": self.v_size,
            "linear_conv_kernel_dim": self.kernel,
            "layer_types": [
                "full_attention" if (layer + 1) % self.interval == 0 else "linear_attention"
                for layer in range(self.layers)
            ],
        }  # fmt: skip


def hugging_face(shape: Shape, seed: int, rope: Scaled | None = None) -> Qwen3_5ForCausalLM:
    torch.manual_seed(seed)
    # Here, because it takes seconds.
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    config = Qwen3_5TextConfig(
        vocab_size=VOCAB,
        hidden_size=shape.hidden,
        intermediate_size=2 * shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        **shape.hybrid(),
        tie_word_embeddings=shape.tied,
        max_position_embeddings=512,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": shape.rope / shape.head_dim,
            "mrope_section": [shape.rope // 2, 0, 0],
            "mrope_interleaved": True,
        }
        | (rope.hugging_face() if rope else {}),
    )
    model = Qwen3_5ForCausalLM(config).eval().float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.08 * torch.randn_like(parameter))
    return model


def add_hybrid(writer: gguf.GGUFWriter, shape: Shape) -> None:
    """The settings of delta nets and attention taking turns."""
    writer.add_rope_dimension_count(shape.rope)
    writer.add_rope_dimension_sections([shape.rope // 2, 0, 0, 0])
    writer.add_ssm_conv_kernel(shape.kernel)
    writer.add_ssm_state_size(shape.k_size)
    writer.add_ssm_group_count(shape.k_heads)
    writer.add_ssm_time_step_rank(shape.v_heads)
    writer.add_ssm_inner_size(shape.v_size * shape.v_heads)
    writer.add_full_attention_interval(shape.interval)


def add_tokenizer(writer: gguf.GGUFWriter, pre: str) -> None:
    """A byte-level vocabulary must hold every byte; the rest is filler."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    alphabet = list(bytes_to_unicode().values())
    writer.add_token_list([*alphabet, "ab", *(f"<{index}>" for index in range(VOCAB - len(alphabet) - 1))])
    writer.add_token_types([1] * VOCAB)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(0)


def delta_net(state: Mapping[str, Tensor], theirs: str, shape: Shape) -> dict[str, Tensor]:
    """The tensors of a delta net by their names in a file: -exp(A_log), value heads from grouped to tiled order."""

    def tiled(rows: Tensor, size: int) -> Tensor:
        repeat = shape.v_heads // shape.k_heads
        return rows.view(shape.k_heads, repeat, size, -1).transpose(0, 1).reshape(rows.shape)

    keys = 2 * shape.k_heads * shape.k_size
    qkv, conv = state[theirs + "in_proj_qkv.weight"], state[theirs + "conv1d.weight"].squeeze(1)
    return {
        "attn_qkv.weight": torch.cat((qkv[:keys], tiled(qkv[keys:], shape.v_size))),
        "ssm_conv1d.weight": torch.cat((conv[:keys], tiled(conv[keys:], shape.v_size))),
        "attn_gate.weight": tiled(state[theirs + "in_proj_z.weight"], shape.v_size),
        "ssm_alpha.weight": tiled(state[theirs + "in_proj_a.weight"], 1),
        "ssm_beta.weight": tiled(state[theirs + "in_proj_b.weight"], 1),
        "ssm_a": tiled(-state[theirs + "A_log"].exp()[:, None], 1)[:, 0],
        "ssm_dt.bias": tiled(state[theirs + "dt_bias"][:, None], 1)[:, 0],
        "ssm_norm.weight": state[theirs + "norm.weight"],
        "ssm_out.weight": tiled(state[theirs + "out_proj.weight"].T, shape.v_size).T,
    }


def write_gguf(model: Qwen3_5ForCausalLM, shape: Shape, path: Path, rope: Scaled | None = None) -> None:
    """The converter's rules: norms plus one."""
    state = dict(model.state_dict())
    writer = gguf.GGUFWriter(path, "qwen35")
    writer.add_block_count(shape.layers)
    writer.add_context_length(512)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(2 * shape.hidden)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e7)
    if rope:
        rope.write(writer, "qwen35")
    add_hybrid(writer, shape)
    add_tokenizer(writer, "qwen35")

    def put(name: str, tensor: torch.Tensor) -> None:
        writer.add_tensor(name, np.ascontiguousarray(tensor.detach().float().numpy()))

    put("token_embd.weight", state["model.embed_tokens.weight"])
    put("output_norm.weight", state["model.norm.weight"] + 1)
    if not shape.tied:
        put("output.weight", state["lm_head.weight"])
    for layer in range(shape.layers):
        ours, theirs = f"blk.{layer}.", f"model.layers.{layer}."
        put(ours + "attn_norm.weight", state[theirs + "input_layernorm.weight"] + 1)
        put(ours + "post_attention_norm.weight", state[theirs + "post_attention_layernorm.weight"] + 1)
        for part in ("gate", "up", "down"):
            put(f"{ours}ffn_{part}.weight", state[f"{theirs}mlp.{part}_proj.weight"])
        if (layer + 1) % shape.interval == 0:
            for a, b in (("attn_q", "q"), ("attn_k", "k"), ("attn_v", "v"), ("attn_output", "o")):
                put(f"{ours}{a}.weight", state[f"{theirs}self_attn.{b}_proj.weight"])
            for part in "qk":
                put(f"{ours}attn_{part}_norm.weight", state[f"{theirs}self_attn.{part}_norm.weight"] + 1)
            continue
        for name, values in delta_net(state, theirs + "linear_attn.", shape).items():
            put(ours + name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
