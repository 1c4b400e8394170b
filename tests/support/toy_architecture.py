"""An architecture that only tests know: two layers of plain attention. All that it takes to add one is in this file.

It is what Hugging Face calls Qwen3 at a very small size, which computes it independently.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from dflash_core.arch.architecture import Architecture, Head
from dflash_core.arch.kinds import Attention, SwiGLU
from dflash_core.arch.spec import LayerSpec, ModelSpec
from dflash_core.formats.metadata import Settings

SIZES = {
    "block_count": 2, "context_length": 256, "embedding_length": 128, "feed_forward_length": 320,
    "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 64,
}  # fmt: skip
VOCABULARY = 300
EPS, BASE = 1e-6, 1e6


def read(keys: Settings, head: Head) -> ModelSpec:
    head_dim = keys.integer("attention.key_length")
    heads, kv_heads = keys.integer("attention.head_count"), keys.integer("attention.head_count_kv")
    window = keys.integer("attention.sliding_window", low=0)
    mixer = Attention(heads, kv_heads, head_dim, head_dim, BASE, EPS, window=window)
    layer = LayerSpec(mixer, SwiGLU(keys.integer("feed_forward_length")))
    return ModelSpec(
        keys.text("general.name"),
        ARCHITECTURE.name,
        keys.integer("context_length"),
        keys.integer("embedding_length"),
        head.vocab_size,
        EPS,
        (layer,) * keys.integer("block_count"),
        head.tied_output,
    )


ARCHITECTURE = Architecture("toy", "a model of the tests", read)


def oracle(window: int = 0) -> Any:
    """The same model by Hugging Face, random weights in float64. `window`: positions that a query sees, 0 for all."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=SIZES["embedding_length"], num_hidden_layers=SIZES["block_count"],
        intermediate_size=SIZES["feed_forward_length"], num_attention_heads=SIZES["attention.head_count"],
        num_key_value_heads=SIZES["attention.head_count_kv"], head_dim=SIZES["attention.key_length"],
        rms_norm_eps=EPS, rope_parameters={"rope_type": "default", "rope_theta": BASE}, tie_word_embeddings=False,
        max_position_embeddings=SIZES["context_length"], attn_implementation="eager",
        use_sliding_window=window > 0, sliding_window=window or None,
        layer_types=["sliding_attention" if window else "full_attention"] * SIZES["block_count"],
    )  # fmt: skip
    torch.manual_seed(3)
    model = Qwen3ForCausalLM(config).double().eval()
    for name, value in model.named_parameters():
        torch.nn.init.normal_(value, 1.0 if "norm" in name else 0.0, 0.2 if "norm" in name else value.shape[-1] ** -0.5)
        value.data = value.data.float().double()  # what the file holds
    return model


NAMES = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def write(path: Path, model: Any) -> Path:
    """The model as a GGUF file of F32 tensors."""
    writer = gguf.GGUFWriter(path, ARCHITECTURE.name)
    writer.add_name("Toy")
    for key, value in SIZES.items():
        writer.add_uint32(f"{ARCHITECTURE.name}.{key}", value)
    writer.add_uint32(f"{ARCHITECTURE.name}.attention.sliding_window", model.config.sliding_window or 0)
    for name, value in model.state_dict().items():
        stem = name.removesuffix(".weight")
        if stem in OUTSIDE:
            to = OUTSIDE[stem]
        else:
            _, _, layer, part = stem.split(".", 3)
            to = f"blk.{layer}.{NAMES[part]}"
        writer.add_tensor(f"{to}.weight", np.ascontiguousarray(value.float().numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
