"""A folder's weights under the names of GGUF tensors: what reads a GGUF file reads it too."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from dflash_core.formats.folders.parts import Part
from dflash_core.formats.gguf import GGUFFile, MetaValue
from dflash_core.formats.quants import BY_NAME, Bytes
from dflash_core.formats.safetensors import SafetensorsFile
from dflash_core.formats.weights import TensorInfo, given


@dataclass(frozen=True, slots=True, eq=False)
class FolderFile(GGUFFile):
    """`parts`: what each tensor's rows are read from; offsets mean nothing here. `images`: how many modules for images
    and sound were left out."""

    parts: Mapping[str, Part]
    images: int = 0

    @property
    def container(self) -> str:
        return "safetensors"

    def settled(self) -> FolderFile:
        """The file with zeros and orders of INT4 read, as a load needs them: until then the types are those of what the
        config says. Raises FormatError or UnsupportedError."""
        parts = {name: part.settled() for name, part in self.parts.items()}
        tensors = {name: replace(info, type=parts[name].type) for name, info in self.tensors.items() if name in parts}
        return replace(self, tensors=tensors, parts=parts)

    def _stored(self, info: TensorInfo, width: int, first: int, count: int, out: Bytes | None = None) -> Bytes:
        part = self.parts[info.name]
        each = part.shape[0] * width // info.n_bytes  # of its rows, in one of these
        return given(part.read(first * each, (first + count) * each).reshape(count, width), out)


def folder_file(
    path: Path, file: SafetensorsFile, metadata: Mapping[str, MetaValue], parts: Mapping[str, Part], images: int = 0
) -> FolderFile:
    """The file of parts by the names of their tensors."""
    tensors = {name: _info(name, part) for name, part in parts.items()}
    return FolderFile(path, tensors, file.shards, 0, metadata, parts, images)


def _info(name: str, part: Part) -> TensorInfo:
    (rows, columns), kind = part.shape, BY_NAME[part.type]
    n_bytes = rows * (columns // kind.block * kind.size)
    return TensorInfo(name, part.sizes, part.type, n_bytes, math.prod(part.sizes), 0, 0, part.factors)
