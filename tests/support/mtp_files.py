"""Files with MTP heads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np

from support.gguf_copy import Stored, stored, write_copy
from support.golden import golden

HEAD = golden("heads/tiny-mtp-head-F16.gguf")


def with_head(path: Path) -> Path:
    """The golden target with the golden head after it, in one file."""
    trunk, block = gguf.GGUFReader(golden("tiny-F16.gguf")), gguf.GGUFReader(HEAD)
    changed = {"qwen35.block_count": 5, "qwen35.nextn_predict_layers": 1}
    return write_copy(path, trunk, [*stored(trunk), *stored(block)], changed)


def apart(source: Path, folder: Path, *, fused: bool = False) -> tuple[Path, Path]:
    """Split a file with a head into two: the trunk, and the head. `fused`: the head's gate and up experts become one
    tensor."""
    reader = gguf.GGUFReader(source)
    name = reader.fields["general.architecture"].contents()
    blocks = reader.fields[f"{name}.block_count"].contents()
    head = {tensor.name: tensor for tensor in stored(reader) if tensor.name.startswith(f"blk.{blocks - 1}.")}
    trunk = [tensor for tensor in stored(reader) if tensor.name not in head]
    if fused:
        gate, up = (head.pop(f"blk.{blocks - 1}.ffn_{part}_exps.weight") for part in ("gate", "up"))
        joined = np.concatenate([gate.data, up.data], axis=1)
        head["fused"] = Stored(gate.name.replace("gate", "gate_up"), joined, gate.type)
    alone = {f"{name}.block_count": blocks - 1, f"{name}.nextn_predict_layers": 0}
    return (
        write_copy(folder / "trunk.gguf", reader, trunk, alone),
        write_copy(folder / "mtp-head.gguf", reader, head.values()),
    )


def variant(path: Path, *, own: Sequence[str] = (), without: Sequence[str] = ()) -> Path:
    """The golden head with tensors of its own, or without some."""
    rng = np.random.default_rng(3)
    reader = gguf.GGUFReader(HEAD)
    tensors = [tensor for tensor in stored(reader) if not tensor.name.endswith(tuple(without) or ("?",))]
    for name in own:
        values = rng.standard_normal((768, 256)).astype(np.float32) * 0.1
        tensors.append(Stored(f"blk.4.nextn.{name}.weight", values, gguf.GGMLQuantizationType.F32))
    return write_copy(path, reader, tensors)
