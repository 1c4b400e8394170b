"""safetensors: a JSON header of names, types, shapes and byte ranges, then the bytes.

This module parses the header itself: it is short, and a forged length, range or shape must become a one-line error.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_core.clean import quoted
from dflash_core.errors import FormatError, UnsupportedError
from dflash_core.formats.quants import FLOATS, LIST_TYPES
from dflash_core.formats.splits import INDEX
from dflash_core.formats.weights import Shard, TensorInfo, WeightFile, check_apart, listed, shown

MAX_HEADER = 1 << 26  # a drafter's is some 10 KB; 100,000 tensors of experts take 15 MB
MAX_JSON = 1 << 26
EXTRA = "model_extra_tensors.safetensors"
"""What AutoRound does not quantise, also where no index names it."""
PICKLED = (".bin", ".pt", ".pth")
"""Endings of what torch.save writes."""
DTYPES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip
"""Bytes of a number of each type that is stored as whole bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class SafetensorsFile(WeightFile):
    """One safetensors file, or the shards that an index names."""


def open_safetensors(path: str | Path, packed: bool = False) -> SafetensorsFile:
    """Open a .safetensors file, or a folder with one such file or the index of several. `packed`: whether tensors may
    be of any type, and not only floats and lists. Raises DFlashError."""
    path = Path(path)
    if not path.is_dir():
        return _open_shards(path, [path], packed)
    if (path / INDEX).exists():
        return _open_indexed(path, packed)
    files = sorted(one for one in path.glob("*.safetensors") if one.name != EXTRA)
    pickled = sorted(one.name for ending in PICKLED for one in path.glob(f"*{ending}"))
    if pickled and not files:
        raise FormatError(
            f"{path} has its weights in {pickled[0]}, expected .safetensors: files of pickled objects are not read,"
            " since reading them runs code; download the .safetensors of the model, or its GGUF"
        )
    if len(files) != 1:
        raise FormatError(f"{path} has {len(files)} .safetensors files and no {INDEX}; download the whole folder")
    extra = [path / EXTRA] if packed and (path / EXTRA).exists() else []
    return _open_shards(path, [*files, *extra], packed)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises FormatError."""
    file = Shard(path)
    if len(file) > MAX_JSON:
        raise FormatError(f"{path} has {len(file):,} bytes, expected at most {MAX_JSON:,} of JSON")
    return parse_object(str(path), file.read(0, len(file)).tobytes())


def parse_object(source: str, text: bytes) -> dict[str, Any]:
    """A JSON object without repeated names. Raises FormatError."""
    try:
        value = json.loads(text, object_pairs_hook=_unique)
    except RecursionError:
        raise FormatError(f"{source} is nested too deeply to be JSON of a model; the file is damaged") from None
    except ValueError as error:  # bad JSON, bad UTF-8, absurd numbers, repeated names
        raise FormatError(f"{source} is not valid JSON: {str(error)[:120]}; download it again") from None
    if not isinstance(value, dict):
        raise FormatError(f"{source} is JSON of type {type(value).__name__}, expected an object")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        raise ValueError("an object has one name twice")
    return unique


def _open_indexed(folder: Path, packed: bool) -> SafetensorsFile:
    index = folder / INDEX
    placed = read_json(index).get("weight_map")
    if not isinstance(placed, dict) or not placed:
        raise FormatError(f"{index} has no weight_map; download the folder again")
    for file in placed.values():
        # A name with a folder in it could point anywhere on the disk.
        if not isinstance(file, str) or not file.endswith(".safetensors") or Path(file).name != file:
            raise FormatError(f"{index} names {str(file)[:80]!r}, expected a .safetensors file in its folder")
    files = sorted(set(placed.values()))
    absent = [file for file in files if not (folder / file).exists()]
    if absent:
        raise FormatError(f"{folder}: {listed(absent)} of {len(files)} shards is not there; download it too")
    if packed and (folder / EXTRA).exists() and EXTRA not in files:
        files.append(EXTRA)
    weights = _open_shards(folder, [folder / file for file in files], packed)
    misplaced = [
        name for name, file in placed.items()
        if name not in weights.tensors or files[weights.tensors[name].shard] != file
    ]  # fmt: skip
    if misplaced:
        raise FormatError(f"{index}: {listed(misplaced)} is not in the shard it names; download the folder again")
    return weights


def _open_shards(path: Path, files: list[Path], packed: bool) -> SafetensorsFile:
    tensors: dict[str, TensorInfo] = {}
    shards = []
    for index, file in enumerate(files):
        shard = Shard(file)
        for info in _read_header(shard, index, packed):
            if info.name in tensors:
                raise FormatError(f"{file}: tensor {shown(info.name)} is also in an earlier shard; download again")
            tensors[info.name] = info
        shards.append(shard)
    return SafetensorsFile(path, tensors, tuple(shards))


def _read_header(file: Shard, shard: int, packed: bool) -> list[TensorInfo]:
    source = file.name
    prefix = file.read(0, min(8, len(file))).tobytes()
    length = int.from_bytes(prefix, "little")
    start = 8 + length
    if len(prefix) < 8 or length < 2 or start > len(file) or length > MAX_HEADER:
        raise FormatError(
            f"{source} is not a whole safetensors file: it starts with {quoted(prefix)}, a header length of {length:,},"
            f" expected 2 to {max(2, min(len(file) - 8, MAX_HEADER)):,}; download it again"
        )
    header = parse_object(f"the header of {source}", file.read(8, length).tobytes())
    header.pop("__metadata__", None)
    infos = [_tensor(source, name, entry, start, shard, packed) for name, entry in header.items()]
    for info in infos:
        short = info.offset + info.n_bytes - len(file)
        if short > 0:
            raise FormatError(
                f"{source} is truncated: tensor {shown(info.name)} ends {short:,} bytes past the end of the file's"
                f" {len(file):,}; download or copy it again"
            )
    check_apart(source, infos)
    return infos


def _tensor(source: str, name: str, entry: Any, start: int, shard: int, packed: bool) -> TensorInfo:
    where = f"{source}: tensor {shown(name)}"
    entry = entry if isinstance(entry, dict) else {}
    dtype, shape, span = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or not _sizes(shape) or not _sizes(span) or len(span) != 2:
        raise FormatError(f"{where} lacks a proper dtype, shape or data_offsets; the file is damaged")
    is_list = dtype in LIST_TYPES and len(shape) == 1
    if dtype not in (DTYPES if packed else FLOATS) and not is_list:
        raise UnsupportedError(
            f"{where} is stored as {shown(dtype[:40])}, expected one of {' '.join(DTYPES if packed else FLOATS)}"
        )
    if packed and not shape:
        shape = [1]  # one number
    limit = 5 if packed else 4  # convolutions of an image tower
    if not 1 <= len(shape) <= limit or 0 in shape:
        raise FormatError(f"{where} has shape {shape[:8]}, expected 1 to {limit} positive sizes; the file is damaged")
    n_elements = math.prod(shape)
    n_bytes = n_elements * DTYPES[dtype]
    if span[1] - span[0] != n_bytes:
        raise FormatError(
            f"{where} spans bytes {span[0]:,} to {span[1]:,}, expected {n_bytes:,} bytes for {shape} of {dtype};"
            " the file is damaged"
        )
    return TensorInfo(name, tuple(shape), dtype, n_bytes, n_elements, shard, start + span[0])


def _sizes(value: Any) -> bool:
    """A list of whole numbers from 0 to 2^48."""
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 48 for item in value)
