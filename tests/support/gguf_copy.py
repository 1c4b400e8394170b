"""Copies of GGUF files with settings and tensors changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np


class Stored(NamedTuple):
    """A tensor as it is stored."""

    name: str
    data: np.ndarray
    type: gguf.GGMLQuantizationType


def stored(reader: gguf.GGUFReader) -> list[Stored]:
    return [Stored(tensor.name, tensor.data, tensor.tensor_type) for tensor in reader.tensors]


def write_copy(
    path: Path, reader: gguf.GGUFReader, tensors: Iterable[Stored], changed: Mapping[str, Any] | None = None
) -> Path:
    """The settings of `reader` with some `changed` or new (Python's types choose theirs), and these tensors."""
    more = dict(changed or {})
    name = "general.architecture"
    writer = gguf.GGUFWriter(path, reader.fields[name].contents())
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == name:
            continue
        value = more.pop(field.name, field.contents())
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_array(field.name, value)
        else:
            writer.add_key_value(field.name, value, field.types[0])
    for key, value in more.items():
        add = {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32, list: writer.add_array}
        add[type(value)](key, value)
    for tensor in tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def with_fused_qkv(path: Path, source: Path, changed: Mapping[str, Any] | None = None) -> Path:
    """A file whose attention layers hold Q, K and V as one tensor, wherever these are of one type."""
    reader = gguf.GGUFReader(source)
    tensors = {tensor.name: tensor for tensor in stored(reader)}
    for name in [name for name in tensors if name.endswith("attn_q.weight")]:
        parts = [name.replace("attn_q", f"attn_{part}") for part in "qkv"]
        kinds = {tensors[part].type for part in parts}
        if len(kinds) == 1:
            data = np.concatenate([tensors.pop(part).data for part in parts])
            fused = name.replace("attn_q", "attn_qkv")
            tensors[fused] = Stored(fused, data, kinds.pop())
    return write_copy(path, reader, tensors.values(), changed)
