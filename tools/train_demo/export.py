"""Writes the trained weights as GGUF: a qwen35 target, and a drafter in the `dflash` flavour."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.quants import dequantize, quantize

from dflash_core.arch.qwen35 import DENSE as ARCHITECTURE
from dflash_core.demo import WEIGHTS

from . import packing
from . import tokenizer as tok
from .shapes import DraftConfig, Shapes, TargetConfig, Weights, draft_shapes, export_form, target_shapes

TEMPLATE = WEIGHTS.parent / "chat_template.jinja"


def write_target(path: Path, c: TargetConfig, weights: Weights, tokenizer: Path, name: str = "DFlash demo") -> None:
    """Write a target with the storage types of `target_shapes`."""
    w = gguf.GGUFWriter(path, ARCHITECTURE.name)
    write_target_settings(w, c, name)
    w.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    _write_tokenizer(w, tokenizer)
    w.add_chat_template(TEMPLATE.read_text(encoding="utf-8"))
    write_tensors(w, export_form(weights), target_shapes(c))


def write_draft(
    path: Path, c: DraftConfig, weights: Weights, tokenizer: Path | None, context: int, kind: str = "Q8_0",
    name: str = "DFlash demo drafter",
) -> None:  # fmt: skip
    """Write a drafter. The file numbers layer inputs: the output of target layer i is stored as i + 1.

    Without `tokenizer` the file has only the size of the vocabulary; tokens are the target's.
    """
    w = gguf.GGUFWriter(path, "dflash")
    _write_sizes(w, c, name, context, c.head_dim)
    w.add_uint32("dflash.block_size", c.block)
    w.add_array("dflash.target_layers", [i + 1 for i in c.captured_layers])
    if c.window:
        w.add_uint32("dflash.attention.sliding_window", c.window)
        w.add_array("dflash.attention.sliding_window_pattern", list(c.sliding))
    if c.conv and c.selector:
        w.add_bool("dflash.attention.causal", False)
        w.add_uint32("dflash.conv_kernel_size", c.conv.kernel)
        w.add_uint32("dflash.conv_group_size", c.conv.group)
        w.add_uint32("dflash.selector_rank", c.selector.rank)
        w.add_uint32("dflash.selector_top_k", c.selector.top_k)
    types = {
        "Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
        "Q5_0": gguf.LlamaFileType.MOSTLY_Q5_0,
        "Q4_0": gguf.LlamaFileType.MOSTLY_Q4_0,
        "IQ4_NL": gguf.LlamaFileType.MOSTLY_IQ4_NL,
    }
    w.add_file_type(types[kind])
    if tokenizer:
        _write_tokenizer(w, tokenizer)
    else:
        w.add_quantization_version(2)
        w.add_vocab_size(c.vocab)
    w.add_mask_token_id(c.mask_id)
    write_tensors(w, export_form(weights), draft_shapes(c, kind))


def write_target_settings(w: Any, c: TargetConfig, name: str) -> None:
    """Write the metadata keys that only a target has, and its sizes."""
    _write_sizes(w, c, name, c.context, c.rope_dim)
    w.add_rope_dimension_sections([11, 11, 10, 0])
    w.add_ssm_conv_kernel(c.conv)
    w.add_ssm_state_size(c.state)
    w.add_ssm_group_count(c.k_heads)
    w.add_ssm_time_step_rank(c.v_heads)
    w.add_ssm_inner_size(c.inner)
    w.add_full_attention_interval(c.interval)


def _write_sizes(w: Any, c: TargetConfig | DraftConfig, name: str, context: int, rope_dim: int) -> None:
    """Write the metadata keys that both architectures have."""
    w.add_type("model")
    w.add_name(name)
    w.add_block_count(c.layers)
    w.add_context_length(context)
    w.add_embedding_length(c.hidden)
    w.add_feed_forward_length(c.ffn)
    w.add_head_count(c.heads)
    w.add_head_count_kv(c.kv_heads)
    w.add_key_length(c.head_dim)
    w.add_value_length(c.head_dim)
    w.add_layer_norm_rms_eps(c.eps)
    w.add_rope_freq_base(c.rope_theta)
    w.add_rope_dimension_count(rope_dim)


def _write_tokenizer(w: Any, path: Path) -> None:
    tokens, types, merges = tok.gguf_tables(path)
    w.add_quantization_version(2)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen35")
    w.add_token_list(tokens)
    w.add_token_types(types)
    w.add_token_merges(merges)
    w.add_eos_token_id(tok.token_id("<|im_end|>", len(tokens)))
    w.add_pad_token_id(tok.token_id("<|endoftext|>", len(tokens)))
    w.add_add_bos_token(False)


def write_tensors(w: Any, weights: Weights, shapes: Shapes) -> None:
    """Quantise and add every tensor of the table, then write the whole file."""
    for name, (shape, kind) in shapes.items():
        data = np.ascontiguousarray(weights[name].numpy(), np.float32)
        if data.shape != shape:
            raise ValueError(f"{name}: shape {data.shape}, expected {shape}")
        if kind == "F32":
            w.add_tensor(name, data)
        else:
            quant = gguf.GGMLQuantizationType[kind]
            stored = packing.packed(torch.from_numpy(data)) if kind == "IQ4_NL" else quantize(data, quant)
            w.add_tensor(name, stored, raw_dtype=quant)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def read_weights(path: Path) -> Weights:
    """Every tensor of a GGUF file, dequantised to float32."""
    tensors = gguf.GGUFReader(path).tensors
    return {t.name: torch.from_numpy(np.array(dequantize(t.data, t.tensor_type), dtype=np.float32)) for t in tensors}
