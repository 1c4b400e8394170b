"""Pairs of files with the exact shapes and types of a real model and random weights, for benchmarks.

Speed and memory depend on shapes and types, not on values, so these stand in for files that cannot be shipped. Their
text means nothing: acceptance has to be forced. The type mix is llama.cpp's Q4_K_M rule as publishers ship it for
Qwen3.6-27B; block scales are chosen so that weights have the variance 1 / columns and activations stay tame.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from tokenizers.pre_tokenizers import ByteLevel

from dflash_core.arch.kinds import Shapes
from dflash_core.bench.synthetic_models import (
    Q4_K_M,
    SIZE_27B,
    Model,
    Vocabulary,
    draft_types,
    is_float,
    target_types,
)
from dflash_core.config import ASSISTANT_ARCHITECTURE
from dflash_core.errors import DFlashError, OutOfMemoryError
from dflash_core.formats.quants import BY_NAME, Bytes
from dflash_core.memory import gib
from tools.bench.variants import mtp_config, mtp_types, with_block

POOL_BYTES = 1 << 26
SEED = 0


@dataclass(frozen=True, slots=True)
class Pair:
    """The files of a synthetic pair."""

    target: Path
    draft: Path


def synthetic_pair(folder: Path, model: Model = SIZE_27B, progress: Callable[[str, float], None] | None = None) -> Pair:
    """The model's pair in `folder`, written there unless it already is.

    Raises DFlashError where the folder cannot be written and OutOfMemoryError where too little of the disk is free.
    """
    tag = model.name
    kind = f"mtp-{model.mix}" if model.head == "mtp" else f"{model.drafter().kind}-Q8_0"
    pair = Pair(folder / f"synthetic-{tag}-{model.mix}.gguf", folder / f"synthetic-{tag}-{kind}.gguf")
    say = progress or (lambda phase, done: None)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not pair.target.exists():
            write_target(pair.target, model, say)
        if not pair.draft.exists():
            WRITERS[model.head](pair.draft, model, say)
    except OSError as error:
        raise DFlashError(f"{folder}: {error.strerror or error}; name another folder for the synthetic files") from None
    return pair


def write_target(path: Path, model: Model, say: Callable[[str, float], None]) -> None:
    """Write a model's target."""
    spec = model.target()
    describe = partial(_describe, model=model, settings=model.settings)
    _write(path, spec.architecture, describe, spec.tensors(), target_types(spec, model), say)


def write_mtp(path: Path, model: Model, say: Callable[[str, float], None]) -> None:
    """Write a model's MTP head, a file of its own."""
    config = mtp_config(model)
    describe = partial(_describe, model=model, settings=with_block(model))
    _write(path, model.architecture, describe, config.tensors(), mtp_types(config, model), say)


def _describe(writer: Any, model: Model, settings: Mapping[str, Any]) -> None:
    writer.add_name(model.target().name)
    for key, value in settings.items():
        _setting(writer, f"{model.architecture}.{key}", value)
    writer.add_file_type(Q4_K_M)
    _vocabulary(writer, model.vocabulary, model.draft.mask_token_id)


def _setting(writer: Any, key: str, value: Any) -> None:
    kinds = {int: writer.add_uint32, float: writer.add_float32, list: writer.add_array, str: writer.add_string}
    kinds[type(value)](key, value)


def write_assistant(path: Path, model: Model, say: Callable[[str, float], None]) -> None:
    """Write a model's assistant."""

    def described(writer: Any) -> None:
        for key, value in model.assistant.items():
            _setting(writer, f"{ASSISTANT_ARCHITECTURE}.{key}", value)

    config = model.drafter()
    _write(path, ASSISTANT_ARCHITECTURE, described, config.tensors(), draft_types(config), say)


def write_draft(path: Path, model: Model, say: Callable[[str, float], None]) -> None:
    """Write a model's drafter."""

    def described(writer: Any) -> None:
        _draft_settings(writer, model)
        _vocabulary(writer, model.vocabulary, model.draft.mask_token_id)

    _write(path, "dflash", described, model.draft.tensors(), draft_types(model.draft), say)


WRITERS = {"dflash": write_draft, "mtp": write_mtp, "assistant": write_assistant}


def _write(
    path: Path,
    architecture: str,
    described: Callable[[Any], None],
    shapes: Shapes,
    types: Mapping[str, str],
    say: Callable[[str, float], None],
) -> None:
    """Write one file, tensor by tensor, under a temporary name until it is whole."""
    sizes = {name: _n_bytes(shapes[name], kind) for name, kind in types.items()}
    total, free = sum(sizes.values()), shutil.disk_usage(path.parent).free
    if total + (64 << 20) > free:
        raise OutOfMemoryError(
            f"{path.name} takes {gib(total)} but {path.parent} has {gib(free)} free; name a folder with more space"
        )
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    writer = gguf.GGUFWriter(part, architecture)
    try:
        described(writer)
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
        if kind == "F16":
            return self.rng.normal(0, shape[-1] ** -0.5, shape).astype(np.float16).view(np.uint8)
        blocks = int(np.prod(shape)) // BY_NAME[kind].block
        return self._blocks(kind, blocks, 1 / np.sqrt(shape[-1])).reshape(*shape[:-1], -1)

    def _vector(self, name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
        if name.endswith("conv1d.weight"):
            return self.rng.normal(0, 0.4, shape).astype(np.float32)
        if name.endswith("ssm_dt.bias"):
            return self.rng.normal(0, 0.5, shape).astype(np.float32)
        if name.endswith("ssm_a"):
            return (-np.exp(self.rng.uniform(-2, 1, shape))).astype(np.float32)
        if name.startswith("conf_proj"):  # about as likely as not
            return self.rng.normal(0, 0.01 * shape[-1] ** -0.5, shape).astype(np.float32)
        if is_float(name, (1, 1)):  # routers, whose scores are to differ between experts
            return self.rng.normal(0, shape[-1] ** -0.5, shape).astype(np.float32)
        return np.ones(shape, np.float32)

    def _quants(self, count: int) -> Bytes:
        at = int(self.rng.integers(0, 1 << 20))
        return np.resize(self.pool[at : at + count], count)  # it copies all that it is given

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
        elif kind == "Q4_1":  # d, the least weight, 16 bytes of quants; 4 bits deviate by 4.6
            d = deviation / 4.61
            out[:, :2], out[:, 2:4] = _half(d), _half(-7.5 * d)
            out[:, 4:] = self._quants(count * 16).reshape(count, 16)
        elif kind == "Q5_0":  # d, 32 upper bits, 16 bytes of quants; 5 bits deviate by 9.2
            out[:, :2] = _half(deviation / 9.23)
            out[:, 2:] = self._quants(count * 20).reshape(count, 20)
        elif kind == "MXFP4":  # an exponent, 16 bytes of codes, which deviate by 2.9
            out[:, 0] = 127 + round(float(np.log2(deviation / 2.93)))
            out[:, 1:] = self._quants(count * 16).reshape(count, 16)
        else:
            assert kind == "Q6_K", kind  # 192 bytes of quants, 16 scales, d; 6 bits deviate by 18.5
            out[:, :192] = self._quants(count * 192).reshape(count, 192)
            out[:, 192:208], out[:, 208:] = 16, _half(deviation / (16 * 18.5))
        return out


def _half(value: float) -> Bytes:
    return np.frombuffer(np.float16(value).tobytes(), np.uint8)


def _draft_settings(writer: Any, model: Model) -> None:
    c = model.draft
    writer.add_name(c.name)
    writer.add_block_count(c.block_count)
    writer.add_context_length(model.settings["context_length"])
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
    if c.sliding_window:
        writer.add_uint32("dflash.attention.sliding_window", c.sliding_window)
        writer.add_array("dflash.attention.sliding_window_pattern", list(c.sliding))
    if c.heads.conv:
        writer.add_uint32("dflash.conv_kernel_size", c.heads.conv.kernel)
        writer.add_uint32("dflash.conv_group_size", c.heads.conv.group)
    if c.heads.selector:
        writer.add_uint32("dflash.selector_rank", c.heads.selector.rank)
        writer.add_uint32("dflash.selector_top_k", c.heads.selector.top_k)
        writer.add_bool("dflash.attention.causal", c.causal[0])
    writer.add_mask_token_id(c.mask_token_id)


def _vocabulary(writer: Any, words: Vocabulary, mask: int | None) -> None:
    """A byte-level tokenizer that spells everything letter by letter, with Qwen's special tokens in their places."""
    tokens = sorted(ByteLevel.alphabet()) + [f"<unused {index}>" for index in range(256, words.size)]
    special = {words.end_of_text: "<|endoftext|>", words.im_start: "<|im_start|>", words.im_end: "<|im_end|>"}
    if mask is not None:
        special[mask] = "<|mask|>"
    plain = {256: "hi", words.think: "<think>", words.end_think: "</think>"}
    types = [1] * words.size
    for index, text in {**special, **plain}.items():
        tokens[index] = text
    for index in special:
        types[index] = 3
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(words.pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(["h i"])
    writer.add_eos_token_id(words.im_end)
    writer.add_pad_token_id(words.end_of_text)
