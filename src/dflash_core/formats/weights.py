"""What every weight file offers, whatever its format: named tensors in memory-mapped shards, read as float32."""

from __future__ import annotations

import itertools
import mmap
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dflash_core.errors import FormatError, UnsupportedError
from dflash_core.formats.quants import Bytes, Float32, to_float32


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies and what it is. `shape` is in torch order (rows first), the reverse of ggml's ne."""

    name: str
    shape: tuple[int, ...]
    type: str
    n_bytes: int
    n_elements: int
    shard: int
    offset: int


class WeightFile(Protocol):
    """What model code needs from a weight file."""

    @property
    def path(self) -> Path: ...

    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...

    def raw(self, name: str) -> Bytes: ...

    def float32(self, name: str, rows: slice | None = None) -> Float32: ...

    def float32_rows(self, name: str, indices: Sequence[int] | npt.NDArray[np.integer]) -> Float32: ...


@dataclass(frozen=True, slots=True, eq=False)
class MappedWeights:
    """A WeightFile over memory maps. Tensors were checked against their shard's size when the file was opened."""

    path: Path
    tensors: Mapping[str, TensorInfo]
    shards: tuple[Bytes, ...]

    def raw(self, name: str) -> Bytes:
        """The stored bytes as a view of the file, (rows, bytes per row): a row is the last dimension."""
        info = self.tensors[name]
        data = self.shards[info.shard][info.offset : info.offset + info.n_bytes]
        return data.reshape(info.n_elements // info.shape[-1], -1)

    def float32(self, name: str, rows: slice | None = None) -> Float32:
        """A new float32 array in torch order; with `rows`, only that part of the first dimension is read."""
        info = self.tensors[name]
        if len(info.shape) == 1:
            values = to_float32(self.raw(name), info.type).reshape(info.shape)
            return values if rows is None else values[rows]
        stored = self._by_first_dimension(info)
        part = stored if rows is None else stored[rows]
        return to_float32(part, info.type).reshape(part.shape[0], *info.shape[1:])

    def float32_rows(self, name: str, indices: Sequence[int] | npt.NDArray[np.integer]) -> Float32:
        """Chosen rows of a matrix, such as the embeddings of a few tokens."""
        info = self.tensors[name]
        part = self._by_first_dimension(info)[np.asarray(indices, dtype=np.int64)]
        return to_float32(part, info.type).reshape(part.shape[0], *info.shape[1:])

    def _by_first_dimension(self, info: TensorInfo) -> Bytes:
        return self.raw(info.name).reshape(*info.shape[:-1], -1)


@dataclass(frozen=True, slots=True, eq=False)
class RenamedWeights:
    """A WeightFile under other names: `names` maps the name shown to the name in the file."""

    source: WeightFile
    names: Mapping[str, str]
    tensors: Mapping[str, TensorInfo]

    @property
    def path(self) -> Path:
        return self.source.path

    def raw(self, name: str) -> Bytes:
        return self.source.raw(self.names[name])

    def float32(self, name: str, rows: slice | None = None) -> Float32:
        return self.source.float32(self.names[name], rows)

    def float32_rows(self, name: str, indices: Sequence[int] | npt.NDArray[np.integer]) -> Float32:
        return self.source.float32_rows(self.names[name], indices)


def map_file(path: Path) -> mmap.mmap:
    """Map a regular, non-empty file for reading. Raises FormatError for anything else."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise FormatError(f"{path} is a folder, expected a file; name a file inside it")
        if not stat.S_ISREG(mode):
            raise FormatError(f"{path} is not a regular file, so it cannot be memory-mapped; copy it to a disk")
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                raise FormatError(f"{path} is empty (0 bytes); download or copy it again")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise FormatError(f"{path} does not exist; check the path") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FormatError(f"{path} cannot be read: {reason}") from None


def check_apart(source: str, tensors: Iterable[TensorInfo]) -> None:
    """Refuse a file in which two tensors share bytes: no writer makes one, so an offset is damaged or forged."""
    for first, second in itertools.pairwise(sorted(tensors, key=lambda info: info.offset)):
        shared = first.offset + first.n_bytes - second.offset
        if shared > 0:
            raise FormatError(
                f"{source}: tensors {shown(first.name)} and {shown(second.name)} share {shared:,} bytes at offset"
                f" {second.offset:,}, expected each to have its own; the file is damaged, download it again"
            )


def check_tensors(
    source: str, tensors: Mapping[str, TensorInfo], expected: Mapping[str, tuple[int, ...]], ignored: Iterable[str] = ()
) -> None:
    """Refuse a file whose tensors are not exactly `expected`, apart from `ignored` names.

    A tensor nobody asked for would change the model's output if it were left out, so it is refused as well.
    """
    missing = [name for name in expected if name not in tensors]
    if missing:
        raise FormatError(
            f"{source}: {len(missing)} of {len(expected)} tensors are missing: {listed(missing)};"
            " the file is incomplete or made for another program"
        )
    for name, shape in expected.items():
        if tensors[name].shape != shape:
            raise FormatError(
                f"{source}: tensor {name} has shape {list(tensors[name].shape)}, expected {list(shape)} from the"
                " file's own settings; convert the model again"
            )
    unknown = sorted(set(tensors).difference(expected, ignored))
    if unknown:
        raise UnsupportedError(
            f"{source}: {len(unknown)} tensors have no meaning here: {listed(unknown)};"
            " running without them would change the model's output"
        )


def listed(names: Sequence[str], most: int = 4) -> str:
    """The first few names, and how many more there are."""
    rest = len(names) - most
    return ", ".join(map(shown, names[:most])) + (f" and {rest} more" if rest > 0 else "")


def shown(name: str) -> str:
    """A name out of a file as it may stand in a message: short, and nothing that a terminal would obey."""
    return name if name.isprintable() and len(name) <= 80 else ascii(name[:80])
