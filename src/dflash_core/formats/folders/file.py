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
from dflash_core.formats.weights import TensorInfo


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

    def _rows(self, info: TensorInfo, count: int, rows: slice | None, out: Bytes | None = None) -> Bytes:
        part = self.parts[info.name]
        begin, end, step = (rows or slice(None)).indices(count)
        if step != 1:
            raise ValueError(f"rows {rows} of a stored tensor, expected consecutive ones")
        each, found = part.shape[0] // count, max(end - begin, 0)
        data = part.read(begin * each, (begin + found) * each).reshape(found, -1)
        if out is None:
            return data
        out.reshape(data.shape)[:] = data
        return out


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
