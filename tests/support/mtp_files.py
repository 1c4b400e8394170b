"""Files with MTP heads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from support.golden import golden

HEAD = golden("heads/tiny-mtp-head-F16.gguf")


def with_head(path: Path) -> Path:
    """The golden target with the golden head behind it, in one file."""
    trunk, block = gguf.GGUFReader(golden("tiny-F16.gguf")), gguf.GGUFReader(HEAD)
    writer = gguf.GGUFWriter(path, "qwen35")
    for field in trunk.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            value = 5 if field.name == "qwen35.block_count" else field.contents()
            array = field.types[0] == gguf.GGUFValueType.ARRAY
            (writer.add_array(field.name, value) if array else writer.add_key_value(
                field.name, value, field.types[0]
            ))  # fmt: skip
    writer.add_nextn_predict_layers(1)
    for tensor in (*trunk.tensors, *block.tensors):
        writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def apart(source: Path, folder: Path, *, fused: bool = False) -> tuple[Path, Path]:
    """A file with a head as two: the trunk alone, and the head alone. `fused`: the head's gate and up experts are one
    tensor."""
    reader = gguf.GGUFReader(source)
    name = reader.fields["general.architecture"].contents()
    blocks = reader.fields[f"{name}.block_count"].contents()
    head = {tensor.name: tensor for tensor in reader.tensors if tensor.name.startswith(f"blk.{blocks - 1}.")}
    trunk = {tensor.name: tensor for tensor in reader.tensors if tensor.name not in head}
    parts: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (trunk, {f"{name}.block_count": blocks - 1, f"{name}.nextn_predict_layers": 0}), (head, {}),
    ]  # fmt: skip
    paths = folder / "trunk.gguf", folder / "mtp-head.gguf"
    for path, (tensors, changed) in zip(paths, parts, strict=True):
        writer = gguf.GGUFWriter(path, name)
        for field in reader.fields.values():
            if not field.name.startswith("GGUF.") and field.name != "general.architecture":
                value = changed.get(field.name, field.contents())
                array = field.types[0] == gguf.GGUFValueType.ARRAY
                (writer.add_array(field.name, value) if array else writer.add_key_value(
                    field.name, value, field.types[0]
                ))  # fmt: skip
        gate, up = (f"blk.{blocks - 1}.ffn_{part}_exps.weight" for part in ("gate", "up"))
        for tensor in tensors.values():
            if fused and tensor.name == gate:
                joined = np.concatenate([tensor.data, tensors[up].data], axis=1)
                writer.add_tensor(gate.replace("gate", "gate_up"), joined, raw_dtype=tensor.tensor_type)
            elif not (fused and tensor.name == up):
                writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return paths


def variant(path: Path, *, own: Sequence[str] = (), without: Sequence[str] = ()) -> Path:
    """The golden head with tensors of its own, or without some."""
    rng = np.random.default_rng(3)
    reader, writer = gguf.GGUFReader(HEAD), gguf.GGUFWriter(path, "qwen35")
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            array = field.types[0] == gguf.GGUFValueType.ARRAY
            (writer.add_array(field.name, field.contents()) if array else writer.add_key_value(
                field.name, field.contents(), field.types[0]
            ))  # fmt: skip
    for tensor in reader.tensors:
        if not tensor.name.endswith(tuple(without) or ("?",)):
            writer.add_tensor(tensor.name, tensor.data)
    for name in own:
        writer.add_tensor(f"blk.4.nextn.{name}.weight", rng.standard_normal((768, 256)).astype(np.float32) * 0.1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
