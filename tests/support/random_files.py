"""Random models in other forms: tensors stored in mixed types, and with an MTP head after the trunk."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.quants import dequantize, quantize
from torch import Tensor

from support import random_family, random_model
from support.blocks import random_blocks
from support.gguf_copy import Stored, stored, write_copy
from support.random_family import Drawn

F32 = gguf.GGMLQuantizationType.F32
HALVES = ("F16", "BF16")
OF_32 = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL")
OF_256 = ("Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "IQ3_S", "IQ3_XXS")
FILTERS, ROUTERS = "conv1d.weight", "gate_inp.weight"


def drawn(seed: int, *, wide: bool = False) -> Drawn:
    """A configuration whose last layer is an attention layer; with `wide`, most rows are whole blocks of 256."""
    found = Drawn.random(seed)
    shape = found.shape
    layers = shape.interval * max(1, shape.layers // shape.interval)
    shape = dataclasses.replace(shape, layers=layers, hidden=256 if wide else shape.hidden)
    return dataclasses.replace(found, shape=shape, width=256 if wide and seed % 2 else found.width)


def written(name: str, of: Drawn, seed: int, path: Path) -> Any:
    """A model by Hugging Face, and its file at `path`."""
    if name == "qwen35":
        model = random_model.hugging_face(of.shape, seed)
        random_model.write_gguf(model, of.shape, path)
    else:
        model = random_family.hugging_face(name, of, seed)
        random_family.write_gguf(name, model, of, path)
    return model


def in_mixed_types(source: Path, seed: int) -> tuple[Path, Path, set[str]]:
    """Write two files beside `source`: each matrix in a random type, and the same values as floats. Returns both and
    the types."""
    rng, reader = np.random.default_rng(seed), gguf.GGUFReader(source)
    mixed, floats, used = list[Stored](), list[Stored](), set[str]()
    for tensor in stored(reader):
        one = tensor
        if tensor.data.ndim > 1 and tensor.type == F32 and not tensor.name.endswith((FILTERS, ROUTERS)):
            one = Stored(tensor.name, *in_type(rng, tensor.data))
        used.add(one.type.name)
        values = one.data if one.type == F32 else dequantize(one.data, one.type)
        mixed.append(one)
        floats.append(Stored(one.name, np.ascontiguousarray(values, np.float32), F32))
    beside = source.with_name("mixed.gguf"), source.with_name("floats.gguf")
    return write_copy(beside[0], reader, mixed), write_copy(beside[1], reader, floats), used


def in_type(rng: np.random.Generator, values: np.ndarray) -> tuple[np.ndarray, gguf.GGMLQuantizationType]:
    """Values (..., columns) in a type drawn from those whose blocks fit; blocks of types without a writer here are
    random."""
    columns = values.shape[-1]
    fitting = OF_256 if columns % 256 == 0 else OF_32 if columns % 32 == 0 else HALVES
    among = HALVES if rng.random() < 0.15 else OF_32 if fitting is OF_256 and rng.random() < 0.2 else fitting
    name = str(rng.choice(among))
    kind = gguf.GGMLQuantizationType[name]
    if name in OF_256 or name == "IQ4_NL":
        rows = random_blocks(rng, name, values.size // columns, columns).reshape(*values.shape[:-1], -1)
        return rows, kind
    return quantize(values, kind), kind


def with_head(source: Path, path: Path, name: str, seed: int) -> Path:
    """The last layer of `source` as an MTP block, with random tensors for what it has in addition to a layer."""
    rng, reader = np.random.default_rng(seed), gguf.GGUFReader(source)
    tensors = stored(reader)
    hidden = reader.fields[f"{name}.embedding_length"].contents()
    block = f"blk.{reader.fields[f'{name}.block_count'].contents() - 1}.nextn."
    made = {"eh_proj": rng.standard_normal((hidden, 2 * hidden)) * hidden**-0.5}
    made |= {norm: 1 + 0.2 * rng.standard_normal(hidden) for norm in ("enorm", "hnorm", "shared_head_norm")}
    tensors += [Stored(f"{block}{one}.weight", values.astype(np.float32), F32) for one, values in made.items()]
    return write_copy(path, reader, tensors, {f"{name}.nextn_predict_layers": 1})


@torch.inference_mode()
def trunk(model: Any, ids: list[int]) -> Tensor:
    """Hidden states (n, hidden) of `model` without its last layer, as they enter its head."""
    whole = model.model.layers
    try:
        model.model.layers = whole[:-1]
        model.config.num_hidden_layers -= 1
        found: Tensor = model.model(torch.tensor([ids]), use_cache=False).last_hidden_state[0]
    finally:
        model.model.layers, model.config.num_hidden_layers = whole, len(whole)
    return found


@torch.inference_mode()
def head(model: Any, of: dict[str, Tensor], tokens: list[int], hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Pairs of tokens and hiddens (n, hidden) through the last layer of `model` as an MTP block: its own hiddens, and
    logits (n, vocab). `of`: tensors of `with_head` by the names after "nextn."."""

    def normed(x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + model.config.rms_norm_eps) * weight

    parts = normed(model.model.embed_tokens(torch.tensor(tokens)), of["enorm"]), normed(hidden, of["hnorm"])
    x = (torch.cat(parts, -1) @ of["eh_proj"].T)[None]
    n = len(tokens)
    seen = torch.full((n, n), float("-inf")).triu(1)[None, None]
    positions = torch.arange(1, n + 1)[None]
    out = model.model.layers[-1](x, position_embeddings=model.model.rotary_emb(x, positions), attention_mask=seen)
    found = normed(out[0], of["shared_head_norm"])
    return found, model.lm_head(found)
