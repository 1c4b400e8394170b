"""Small files for the format tests: written by gguf's own writer, or byte by byte where they must be wrong."""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from dflash_core.errors import DFlashError, FormatError
from dflash_core.formats.weights import WeightFile

STRING, ARRAY, U32 = 8, 9, 4
CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

TARGET_KEYS: dict[str, Any] = {
    "general.architecture": "qwen35",
    "general.name": "Small",
    "qwen35.block_count": 2,
    "qwen35.context_length": 128,
    "qwen35.embedding_length": 32,
    "qwen35.feed_forward_length": 64,
    "qwen35.attention.head_count": 2,
    "qwen35.attention.head_count_kv": 1,
    "qwen35.attention.key_length": 16,
    "qwen35.attention.value_length": 16,
    "qwen35.attention.layer_norm_rms_epsilon": 1e-6,
    "qwen35.rope.freq_base": 1e7,
    "qwen35.rope.dimension_count": 4,
    "qwen35.ssm.conv_kernel": 4,
    "qwen35.ssm.state_size": 8,
    "qwen35.ssm.group_count": 2,
    "qwen35.ssm.time_step_rank": 6,
    "qwen35.ssm.inner_size": 48,
    "qwen35.full_attention_interval": 2,
    "tokenizer.ggml.tokens": ["a", "b", "c", "d"],
    "tokenizer.chat_template": "{{ messages }}",
}
ATTENTION = {
    "attn_q": (64, 32), "attn_k": (16, 32), "attn_v": (16, 32), "attn_output": (32, 32),
    "attn_q_norm": (16,), "attn_k_norm": (16,),
}  # fmt: skip
EVERY = {
    "attn_norm": (32,), "post_attention_norm": (32,),
    "ffn_gate": (64, 32), "ffn_up": (64, 32), "ffn_down": (32, 64),
}  # fmt: skip
LINEAR = {
    "attn_qkv": (80, 32), "attn_gate": (48, 32), "ssm_conv1d": (80, 4), "ssm_beta": (6, 32), "ssm_alpha": (6, 32),
    "ssm_norm": (8,), "ssm_out": (32, 48),
}  # fmt: skip
NEXTN = {"nextn.eh_proj": (32, 64), "nextn.enorm": (32,), "nextn.hnorm": (32,)}


def blocks(index: int, *groups: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return {f"blk.{index}.{name}.weight": shape for group in groups for name, shape in group.items()}


TARGET_SHAPES: dict[str, tuple[int, ...]] = {
    "token_embd.weight": (4, 32),
    "output_norm.weight": (32,),
    "output.weight": (4, 32),
    **blocks(0, EVERY, LINEAR),
    "blk.0.ssm_dt.bias": (6,),
    "blk.0.ssm_a": (6,),
    **blocks(1, EVERY, ATTENTION),
}

ZLAB: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 64,
    "vocab_size": 4,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1e7,
    "block_size": 8,
    "num_target_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 16,
    "dflash_config": {"target_layer_ids": [0, 1], "mask_token_id": 3},
}
DRAFT_SHAPES: dict[str, tuple[int, ...]] = {
    "fc.weight": (32, 64),
    "hidden_norm.weight": (32,),
    "norm.weight": (32,),
    **{
        f"layers.{index}.{name}.weight": shape
        for index in range(2)
        for name, shape in {
            "input_layernorm": (32,), "post_attention_layernorm": (32,),
            "self_attn.q_proj": (64, 32), "self_attn.k_proj": (32, 32), "self_attn.v_proj": (32, 32),
            "self_attn.o_proj": (32, 64), "self_attn.q_norm": (16,), "self_attn.k_norm": (16,),
            "mlp.gate_proj": (64, 32), "mlp.up_proj": (64, 32), "mlp.down_proj": (32, 64),
        }.items()
    },
}  # fmt: skip
# Names of the three GGUF flavours: upstream, buun, lucebox.
GGUF_NAMES = {
    "input_layernorm": ("attn_norm",) * 3,
    "post_attention_layernorm": ("ffn_norm", "post_attention_norm", "ffn_norm"),
    "self_attn.q_proj": ("attn_q",) * 3,
    "self_attn.k_proj": ("attn_k",) * 3,
    "self_attn.v_proj": ("attn_v",) * 3,
    "self_attn.o_proj": ("attn_output",) * 3,
    "self_attn.q_norm": ("attn_q_norm",) * 3,
    "self_attn.k_norm": ("attn_k_norm",) * 3,
    "mlp.gate_proj": ("ffn_gate",) * 3,
    "mlp.up_proj": ("ffn_up",) * 3,
    "mlp.down_proj": ("ffn_down",) * 3,
    "fc.weight": ("fc.weight", "dflash_fc.weight", "dflash.fc.weight"),
    "hidden_norm.weight": ("enc.output_norm.weight", "dflash_hidden_norm.weight", "dflash.hidden_norm.weight"),
    "norm.weight": ("output_norm.weight",) * 3,
}
ARCHITECTURES = ("dflash", "dflash-draft", "qwen35-dflash-draft")


def without(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def weights(shapes: Mapping[str, tuple[int, ...]], seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def write_gguf(path: Path, keys: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> Path:
    """A file by gguf's writer; Python's types choose the metadata types."""
    writer = gguf.GGUFWriter(path, str(keys.get("general.architecture", "none")))
    for key, value in keys.items():
        if key == "general.architecture":
            continue
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add.get(type(value), writer.add_array)(key, value)
    for name, array in tensors.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_target(
    path: Path,
    keys: Mapping[str, Any] = TARGET_KEYS,
    shapes: Mapping[str, tuple[int, ...]] = TARGET_SHAPES,
) -> Path:
    return write_gguf(path, keys, weights(shapes))


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray]) -> Path:
    from safetensors.numpy import save_file

    save_file(dict(tensors), path)
    return path


def write_zlab(
    folder: Path, config: Mapping[str, Any] = ZLAB, shapes: Mapping[str, tuple[int, ...]] = DRAFT_SHAPES
) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", weights(shapes))
    return folder


def draft_keys(flavour: int) -> dict[str, Any]:
    """The metadata of the drafter ZLAB in one of the three GGUF flavours."""
    name = ARCHITECTURES[flavour]
    keys = {
        "block_count": 2,
        "embedding_length": 32,
        "feed_forward_length": 64,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.key_length": 16,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 1e7,
        "attention.sliding_window": 16,
        "attention.sliding_window_pattern": [True, False],
    }
    if flavour == 0:
        keys |= {"block_size": 8, "target_layers": [1, 2]}
    else:
        keys |= {"dflash.block_size": 8, "dflash.target_layer_ids": [0, 1], "dflash.mask_token_id": 3, "vocab_size": 4}
    if flavour == 1:
        keys |= {"attention.causal": False, "dflash.n_target_features": 64, "rope.dimension_count": 16}
    full = {"general.architecture": name, **{f"{name}.{key}": value for key, value in keys.items()}}
    if flavour == 0:
        full |= {"tokenizer.ggml.tokens": ["a", "b", "c", "d"], "tokenizer.ggml.mask_token_id": 3}
    return full


def gguf_name(name: str, flavour: int) -> str:
    if name in GGUF_NAMES:
        return GGUF_NAMES[name][flavour]
    _, index, inner = name.removesuffix(".weight").split(".", 2)
    return f"blk.{index}.{GGUF_NAMES[inner][flavour]}.weight"


def write_draft(path: Path, flavour: int, keys: Mapping[str, Any] | None = None) -> Path:
    tensors = {gguf_name(name, flavour): array for name, array in weights(DRAFT_SHAPES).items()}
    return write_gguf(path, draft_keys(flavour) if keys is None else keys, tensors)


# Written byte by byte: files that no writer would produce.


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def entry(key: str | bytes, kind: int, payload: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + payload


def scalar(key: str, kind: int, value: float) -> bytes:
    return entry(key, kind, struct.pack("<" + CODES[kind], value))


def array(kind: int, count: int, payload: bytes) -> bytes:
    return struct.pack("<IQ", kind, count) + payload


def tensor(name: str, ne: Sequence[int], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(ne)}QIQ", len(ne), *ne, kind, offset)


def header(
    entries: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    *,
    version: int = 3,
    counts: tuple[int, int] | None = None,
    data: int = 0,
    alignment: int = 32,
) -> bytes:
    """A whole file: header, padding, `data` bytes. `counts` (tensors, metadata) overrides the true ones."""
    n_tensors, n_entries = counts or (len(tensors), len(entries))
    head = b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_entries) + b"".join(entries) + b"".join(tensors)
    return head + bytes(-len(head) % alignment) + bytes(index % 256 for index in range(data))


def write_bytes(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def refused(opener: Callable[[Path], Any], path: Path, error: type[DFlashError] = FormatError) -> str:
    """The message of the error, which must be a single line; without the test's own folder."""
    with pytest.raises(error) as caught:
        opener(path)
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(f"{path.parent}/", "")


def peak_of_reading(open_file: Callable[[Path], WeightFile], path: Path) -> int:
    """Bytes of Python memory at the most while a file is opened and every tensor read, or refused by name."""
    tracemalloc.start()
    try:
        opened = open_file(path)
        for name in opened.tensors:
            opened.float32(name)
    except DFlashError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


SMALL_GGUF = header(
    [
        scalar("general.alignment", U32, 32),
        scalar("flag", 7, True),
        entry("name", STRING, text("Small")),
        entry("tokens", ARRAY, array(STRING, 4, text("a") + text("b") + text("") + text("Ġt"))),
        entry("types", ARRAY, array(5, 4, bytes(16))),
        entry("nested", ARRAY, array(ARRAY, 1, array(U32, 2, bytes(8)))),
        scalar("split.count", 2, 1),
    ],
    [tensor("a.weight", [32, 2], 8), tensor("b.weight", [8, 2, 2], offset=96), tensor("c", [4], 30, offset=224)],
    data=232,
)


def safetensors_file(told: Any, data: int = 64) -> bytes:
    """A file with this header, and `data` bytes of zeros after it."""
    raw = told if isinstance(told, bytes) else json.dumps(told).encode()
    return len(raw).to_bytes(8, "little") + raw + bytes(data)


F32_4X4 = {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]}
BF16_4 = {"dtype": "BF16", "shape": [4], "data_offsets": [64, 72]}
SMALL_SAFETENSORS = safetensors_file({"a": F32_4X4, "bb": BF16_4}, 72)
