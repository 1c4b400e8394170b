"""Pairs of files with the exact shapes and types of a real model and random weights, for benchmarks.

Speed and memory depend on shapes and types, not on values, so these stand in for files that cannot be shipped. Their
text means nothing: acceptance has to be forced. The type mix is llama.cpp's Q4_K_M rule as publishers ship it for
Qwen3.6-27B; block scales are chosen so that weights have the variance 1 / columns and activations stay tame.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dflash_core.arch.architecture import Head
from dflash_core.arch.kinds import Attention, NextN, Shapes
from dflash_core.arch.qwen35 import ARCHITECTURE
from dflash_core.arch.spec import ModelSpec
from dflash_core.config import DraftConfig, MtpConfig
from dflash_core.errors import DFlashError, OutOfMemoryError
from dflash_core.formats.quants import BY_NAME, Bytes
from dflash_core.memory import gib

VOCABULARY = 248_320
END_OF_TEXT, IM_START, IM_END, THINK, END_THINK, MASK = 248_044, 248_045, 248_046, 248_068, 248_069, 248_070
POOL_BYTES = 1 << 26
SEED = 0

SETTINGS_27B: dict[str, Any] = {
    "block_count": 64,
    "context_length": 262_144,
    "embedding_length": 5120,
    "feed_forward_length": 17_408,
    "attention.head_count": 24,
    "attention.head_count_kv": 4,
    "attention.key_length": 256,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 1e7,
    "rope.dimension_count": 64,
    "rope.dimension_sections": [11, 11, 10, 0],
    "ssm.conv_kernel": 4,
    "ssm.state_size": 128,
    "ssm.group_count": 16,
    "ssm.time_step_rank": 48,
    "ssm.inner_size": 6144,
    "full_attention_interval": 4,
}


def target_of(settings: Mapping[str, Any]) -> ModelSpec:
    """The target that these settings describe."""
    values = {f"{ARCHITECTURE.name}.{key}": value for key, value in settings.items()}
    general = {"general.name": "synthetic qwen35 27B", "general.file_type": 15}
    keys = ARCHITECTURE.settings("synthetic", {**values, **general})
    return ARCHITECTURE.read(keys, Head(VOCABULARY, tied_output=False))


TARGET_27B = target_of(SETTINGS_27B)


def mtp_of(settings: Mapping[str, Any]) -> MtpConfig:
    """An MTP head behind the target that these settings describe, with what publishers give it: its own norm alone."""
    spec = target_of(_with_head(settings))
    assert spec.nextn is not None, "settings with an MTP block"
    hidden, index = spec.embedding_length, spec.block_count
    return MtpConfig(spec.name, index, spec.nextn, NextN(), hidden, spec.vocab_size, spec.rms_eps)


def _with_head(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {**settings, "block_count": settings["block_count"] + 1, "nextn_predict_layers": 1}


DRAFT_27B = DraftConfig(
    name="synthetic DFlash drafter",
    flavour="dflash",
    block_count=5,
    embedding_length=5120,
    feed_forward_length=17_408,
    head_count=32,
    head_count_kv=8,
    key_length=128,
    rms_eps=1e-6,
    rope_freq_base=1e7,
    block_size=16,
    target_layers=(1, 16, 31, 46, 61),
    mask_token_id=MASK,
    vocab_size=None,
    target_block_count=None,
    sliding_window=2048,
    sliding=(True, True, True, True, False),
    causal=(False,) * 5,
)


PAIRS = ("27b", "27b-mtp")
"""The target with a DFlash drafter, and with an MTP head."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Where a synthetic pair lies."""

    target: Path
    draft: Path


def synthetic_pair(
    folder: Path, layers: int = 64, progress: Callable[[str, float], None] | None = None, *, name: str = PAIRS[0]
) -> Pair:
    """A pair of PAIRS in `folder`, written there unless it already is. `layers` cuts the target short, for tests.

    Raises DFlashError where the folder cannot be written and OutOfMemoryError where the disk has too little room.
    """
    settings = SETTINGS_27B | {"block_count": layers}
    captured = tuple(layer for layer in DRAFT_27B.target_layers if layer < layers)
    draft = replace(DRAFT_27B, target_layers=captured)
    tag = "27b" if layers == TARGET_27B.block_count else f"27b-{layers}-layers"
    kind = "mtp-Q4_K_M" if name == "27b-mtp" else "dflash-Q8_0"
    pair = Pair(folder / f"synthetic-{tag}-Q4_K_M.gguf", folder / f"synthetic-{tag}-{kind}.gguf")
    say = progress or (lambda phase, done: None)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not pair.target.exists():
            _write_target(pair.target, settings, say)
        if not pair.draft.exists() and name == "27b-mtp":
            _write_mtp(pair.draft, settings, say)
        elif not pair.draft.exists():
            _write_draft(pair.draft, draft, say)
    except OSError as error:
        raise DFlashError(f"{folder}: {error.strerror}; name another folder for the synthetic files") from None
    return pair


def tensor_type(name: str, layers: int, index: int, rank: int = 0) -> str:
    """The storage type of a target tensor: `index` is its layer, `rank` its place among the full-attention layers."""

    def generous(at: int, count: int) -> bool:
        """llama.cpp's use_more_bits: the first and last eighth, and every third layer between."""
        return at < count // 8 or at >= 7 * count // 8 or (at - count // 8) % 3 == 2

    part = name.split(".", 2)[-1] if name.startswith("blk.") else name
    if part == "output.weight":
        return "Q6_K"
    if part in ("attn_qkv.weight", "ssm_out.weight"):
        return "Q5_K"
    if part in ("ssm_alpha.weight", "ssm_beta.weight"):
        return "Q8_0"
    if part == "ffn_down.weight":
        return "Q6_K" if generous(index, layers) else "Q4_K"
    if part == "attn_v.weight":
        return "Q6_K" if generous(rank, layers // 4) else "Q4_K"
    return "Q4_K"


def target_types(spec: ModelSpec) -> dict[str, str]:
    """The storage type of every tensor of a target."""
    full = [index for index, layer in enumerate(spec.layers) if isinstance(layer.mixer, Attention)]
    types: dict[str, str] = {}
    for name, shape in spec.tensors().items():
        index = int(name.split(".")[1]) if name.startswith("blk.") else 0
        rank = sum(at < index for at in full)
        types[name] = "F32" if _is_vector(name, shape) else tensor_type(name, spec.block_count, index, rank)
    return types


def mtp_types(config: MtpConfig) -> dict[str, str]:
    """The storage type of every tensor of an MTP head, which is the last layer of its file."""
    layers, rank = config.index + 1, config.index // 4
    return {
        name: "F32" if _is_vector(name, shape) else tensor_type(name, layers, config.index, rank)
        for name, shape in config.tensors().items()
    }


def draft_types(config: DraftConfig) -> dict[str, str]:
    """The storage type of every tensor of a drafter."""
    return {name: "F32" if _is_vector(name, shape) else "Q8_0" for name, shape in config.tensors().items()}


def _is_vector(name: str, shape: tuple[int, ...]) -> bool:
    return len(shape) == 1 or name.endswith("conv1d.weight")


def _write_target(path: Path, settings: Mapping[str, Any], say: Callable[[str, float], None]) -> None:
    spec = target_of(settings)
    _write(path, spec.architecture, lambda writer: _describe(writer, settings), spec.tensors(), target_types(spec), say)


def _write_mtp(path: Path, settings: Mapping[str, Any], say: Callable[[str, float], None]) -> None:
    config, own = mtp_of(settings), _with_head(settings)
    describe = partial(_describe, settings=own)
    _write(path, ARCHITECTURE.name, describe, config.tensors(), mtp_types(config), say)


def _describe(writer: Any, settings: Mapping[str, Any]) -> None:
    writer.add_name(target_of(settings).name)
    for key, value in settings.items():
        {int: writer.add_uint32, float: writer.add_float32, list: writer.add_array}[type(value)](
            f"{ARCHITECTURE.name}.{key}", value
        )
    writer.add_file_type(15)


def _write_draft(path: Path, config: DraftConfig, say: Callable[[str, float], None]) -> None:
    _write(path, "dflash", lambda writer: _draft_settings(writer, config), config.tensors(), draft_types(config), say)


def _write(
    path: Path,
    architecture: str,
    described: Callable[[Any], None],
    shapes: Shapes,
    types: Mapping[str, str],
    say: Callable[[str, float], None],
) -> None:
    """Write one file, tensor by tensor, under a temporary name until it is whole."""
    import gguf

    sizes = {name: _n_bytes(shapes[name], kind) for name, kind in types.items()}
    total, free = sum(sizes.values()), shutil.disk_usage(path.parent).free
    if total + (64 << 20) > free:
        raise OutOfMemoryError(
            f"{path.name} takes {gib(total)} but {path.parent} has {gib(free)} free; name a folder with more room"
        )
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    writer = gguf.GGUFWriter(part, architecture)
    try:
        described(writer)
        _vocabulary(writer)
        for name, kind in types.items():
            shape, block = shapes[name], BY_NAME[kind]
            stored = (*shape[:-1], shape[-1] // block.block * block.size) if kind != "F32" else shape
            dtype = np.dtype(np.float32 if kind == "F32" else np.uint8)
            raw = None if kind == "F32" else gguf.GGMLQuantizationType[kind]
            writer.add_tensor_info(name, stored, dtype, sizes[name], raw_dtype=raw)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        random, done = _Random(), 0
        for name, kind in types.items():
            writer.write_tensor_data(random.tensor(name, shapes[name], kind))
            done += sizes[name]
            say(f"writing {path.name}", done / total)
        writer.close()
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _n_bytes(shape: tuple[int, ...], kind: str) -> int:
    block = BY_NAME[kind]
    return int(np.prod(shape)) // block.block * block.size


class _Random:
    """Blocks of random quants under fixed scales. Quants come from one pool at a random offset: values repeat from
    tensor to tensor, but no memory and no cache sees the same bytes twice."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(SEED)
        self.pool = self.rng.integers(0, 256, POOL_BYTES, dtype=np.uint8)

    def tensor(self, name: str, shape: tuple[int, ...], kind: str) -> npt.NDArray[Any]:
        if kind == "F32":
            return self._vector(name, shape)
        blocks = int(np.prod(shape)) // BY_NAME[kind].block
        return self._blocks(kind, blocks, 1 / np.sqrt(shape[-1])).reshape(*shape[:-1], -1)

    def _vector(self, name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
        if name.endswith("conv1d.weight"):
            return self.rng.normal(0, 0.4, shape).astype(np.float32)
        if name.endswith("ssm_dt.bias"):
            return self.rng.normal(0, 0.5, shape).astype(np.float32)
        if name.endswith("ssm_a"):
            return (-np.exp(self.rng.uniform(-2, 1, shape))).astype(np.float32)
        return np.ones(shape, np.float32)

    def _quants(self, count: int) -> Bytes:
        at = int(self.rng.integers(0, 1 << 20))
        return np.resize(self.pool[at:], count)

    def _blocks(self, kind: str, count: int, deviation: float) -> Bytes:
        """`count` blocks whose weights have about this standard deviation."""
        block = BY_NAME[kind]
        out = np.empty((count, block.size), np.uint8)
        if kind == "Q8_0":  # d, 32 int8; uniform int8 deviates by 74
            out[:, :2] = _half(deviation / 74)
            out[:, 2:] = self._quants(count * 32).reshape(count, 32)
        elif kind in ("Q4_K", "Q5_K"):  # d, dmin, 12 bytes of scales and minima (all 32), quants around their middle
            levels = 16 if kind == "Q4_K" else 32
            d = deviation / (32 * np.sqrt((levels**2 - 1) / 12))
            out[:, 0:2], out[:, 2:4] = _half(d), _half(d * (levels - 1) / 2)
            out[:, 4:12], out[:, 12:16] = 32 | 2 << 6, 0
            out[:, 16:] = self._quants(count * (block.size - 16)).reshape(count, -1)
        else:
            assert kind == "Q6_K", kind  # 192 bytes of quants, 16 scales, d; 6 bits deviate by 18.5
            out[:, :192] = self._quants(count * 192).reshape(count, 192)
            out[:, 192:208], out[:, 208:] = 16, _half(deviation / (16 * 18.5))
        return out


def _half(value: float) -> Bytes:
    return np.frombuffer(np.float16(value).tobytes(), np.uint8)


def _draft_settings(writer: Any, c: DraftConfig) -> None:
    writer.add_name(c.name)
    writer.add_block_count(c.block_count)
    writer.add_context_length(TARGET_27B.context_length)
    writer.add_embedding_length(c.embedding_length)
    writer.add_feed_forward_length(c.feed_forward_length)
    writer.add_head_count(c.head_count)
    writer.add_head_count_kv(c.head_count_kv)
    writer.add_key_length(c.key_length)
    writer.add_layer_norm_rms_eps(c.rms_eps)
    writer.add_rope_freq_base(c.rope_freq_base)
    writer.add_rope_dimension_count(c.key_length)
    writer.add_uint32("dflash.block_size", c.block_size)
    writer.add_array("dflash.target_layers", [layer + 1 for layer in c.target_layers])  # counted by their input
    writer.add_uint32("dflash.attention.sliding_window", c.sliding_window)
    writer.add_array("dflash.attention.sliding_window_pattern", list(c.sliding))
    writer.add_mask_token_id(MASK)


def _vocabulary(writer: Any) -> None:
    """A byte-level tokenizer that spells everything letter by letter, with Qwen's special tokens in their places."""
    from tokenizers.pre_tokenizers import ByteLevel

    tokens = sorted(ByteLevel.alphabet()) + [f"<unused {index}>" for index in range(256, VOCABULARY)]
    special = {END_OF_TEXT: "<|endoftext|>", IM_START: "<|im_start|>", IM_END: "<|im_end|>", MASK: "<|mask|>"}
    plain = {256: "hi", THINK: "<think>", END_THINK: "</think>"}
    types = [1] * VOCABULARY
    for index, text in {**special, **plain}.items():
        tokens[index] = text
    for index in special:
        types[index] = 3
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen35")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(["h i"])
    writer.add_eos_token_id(IM_END)
    writer.add_pad_token_id(END_OF_TEXT)
