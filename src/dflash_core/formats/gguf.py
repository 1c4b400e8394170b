"""GGUF v2 and v3. Every count, length and offset is checked against the file before it is used.

The header is read once, front to back: magic, version, counts, metadata, tensor table; the data section starts at the
next multiple of `general.alignment`. A file that opens has all its tensors inside it and of supported types.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dflash_core.clean import quoted
from dflash_core.errors import FormatError, UnsupportedError
from dflash_core.formats.quants import LISTS, SUPPORTED, SUPPORTED_NAMES, UNSUPPORTED
from dflash_core.formats.splits import SPLIT_NAME
from dflash_core.formats.weights import Shard, WeightFile, check_apart, shown
from dflash_core.formats.weights import TensorInfo as TensorInfo

MetaValue = str | int | float | bool | list[Any]

# Bounds on time and memory where a forged count or length would fit a file of many gigabytes.
MAX_ITEMS = 1 << 22  # of all arrays together; a real vocabulary with its merges and types has some 750,000
MAX_HEADER = 1 << 28  # bytes; a real header has some 10 MB
FIRST_READ = 1 << 16  # bytes of it; then twice as many each time
ARCHITECTURE = "general.architecture"
MAX_DEPTH = 4  # arrays of arrays; no known key nests at all
MAX_DIMENSIONS = 4
MAX_DIMENSION = 1 << 48
STRING, ARRAY, BOOL = 8, 9, 7
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


IMAGE_TENSORS = ("v.", "mm.", "a.")
"""How names of tensors for images and sound begin."""


@dataclass(frozen=True, slots=True, eq=False)
class GGUFFile(WeightFile):
    """An open GGUF file, all shards of it. `metadata` is the first shard's."""

    version: int
    metadata: Mapping[str, MetaValue]

    @property
    def container(self) -> str:
        """The format of the file, for users."""
        return f"GGUF v{self.version}"

    @property
    def images(self) -> int:
        """How many tensors turn images and sounds into rows: text does without."""
        return sum(name.startswith(IMAGE_TENSORS) for name in self.tensors)

    def settled(self) -> GGUFFile:
        """The file with all that a load needs to know of its types: of GGUF the header says it."""
        return self


def open_gguf(path: str | Path) -> GGUFFile:
    """Open a GGUF file; for a split file any shard opens all. Raises FormatError or UnsupportedError."""
    first = _read_shard(Path(path), 0)
    count = first.metadata.get("split.count", 1)
    return first if not isinstance(count, int) or count <= 1 else _open_split(first, count)


def _open_split(opened: GGUFFile, count: int) -> GGUFFile:
    path = opened.path
    match = SPLIT_NAME.fullmatch(path.name)
    if match is None or int(match[3]) != count:
        raise FormatError(
            f"{path} is one of {count} shards, but its name does not end in"
            f" -00001-of-{count:05d}.gguf; give the shards their original names, all in one folder"
        )
    paths = [path.with_name(f"{match[1]}-{index + 1:05d}-of-{count:05d}.gguf") for index in range(count)]
    for shard_path in paths:
        if not shard_path.exists():
            raise FormatError(
                f"{path} is split into {count} shards, and {shard_path.name} is not there; download that too"
            )
    # The first shard holds the vocabulary, the long part of a header: do not read it twice.
    shards = [opened if paths[0] == path else _read_shard(paths[0], 0)]
    shards += [_read_shard(shard_path, index) for index, shard_path in enumerate(paths) if index > 0]
    tensors: dict[str, TensorInfo] = {}
    for index, (shard, shard_path) in enumerate(zip(shards, paths)):
        number = shard.metadata.get("split.no")
        if number != index or shard.metadata.get("split.count") != count:
            raise FormatError(
                f"{shard_path}: says it is shard {number} of {shard.metadata.get('split.count')} (from 0),"
                f" expected {index} of {count}; the shards are mixed up, download them again"
            )
        twice = tensors.keys() & shard.tensors.keys()
        if twice:
            raise FormatError(f"{shard_path}: tensor {shown(min(twice))} is also in an earlier shard; download again")
        tensors |= shard.tensors
    total = shards[0].metadata.get("split.tensors.count", len(tensors))
    if total != len(tensors):
        raise FormatError(f"{path}: the {count} shards hold {len(tensors)} tensors, expected {total}")
    return replace(shards[0], path=path, tensors=tensors, shards=tuple(one.shards[0] for one in shards))


def architecture_of(path: str | Path) -> MetaValue | None:
    """The architecture that a GGUF file names, read no further than that: vocabularies come after it. Raises
    FormatError or UnsupportedError."""
    cursor, _, _, count = _read_counts(Path(path))
    return _read_metadata(cursor, count, until=ARCHITECTURE).get(ARCHITECTURE)


def _read_counts(path: Path) -> tuple[_Cursor, int, int, int]:
    """The start of the metadata; the version, and the numbers of tensors and metadata entries."""
    shard = Shard(path)
    head = shard.read(0, min(len(shard), 64)).tobytes()
    if head[:4] != b"GGUF":
        raise FormatError(_not_gguf(path, head))
    cursor = _Cursor(shard)
    cursor.offset = 4
    cursor.inside = "the version"
    version = cursor.scalar("I")
    if version & 0xFFFF == 0 and version:
        raise UnsupportedError(f"{path} is a big-endian GGUF file, expected little-endian; convert it again")
    if version not in (2, 3):
        raise UnsupportedError(f"{path} is GGUF version {version}, expected 2 or 3; convert it again")
    cursor.inside = "the tensor and metadata counts"
    n_tensors, n_metadata = cursor.scalar("Q"), cursor.scalar("Q")
    cursor.inside = "the header"
    cursor.claim(n_metadata, 13, "metadata entries")
    cursor.claim(n_tensors, 32, "tensors")
    return cursor, version, n_tensors, n_metadata


def _read_shard(path: Path, index: int) -> GGUFFile:
    cursor, version, n_tensors, n_metadata = _read_counts(path)
    metadata = _read_metadata(cursor, n_metadata)
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise FormatError(f"{path}: general.alignment is {alignment!r}, expected a power of two")
    tensors = _read_tensors(cursor, n_tensors, alignment, index)
    return GGUFFile(path, tensors, (cursor.shard,), version, metadata)


class _Cursor:
    """A position in the header. `inside` names what is being read, for the message if the file ends there.

    `data` is the file up to somewhere after the position; it grows as the header is read.
    """

    def __init__(self, shard: Shard) -> None:
        self.name = shard.name
        self.shard = shard
        self.data = b""
        self.size = min(len(shard), MAX_HEADER)
        self.items = 0
        self.offset = 0
        self.inside = "the header"

    def need(self, n_bytes: int) -> int:
        """The current offset, followed by at least `n_bytes`. Moves past them."""
        start = self.offset
        if n_bytes > self.size - start:
            raise FormatError(
                f"{self.name}: the header breaks off inside {self.inside}, which needs {n_bytes:,} bytes at offset"
                f" {start:,} of {self.size:,}; the file is truncated or damaged, download it again"
            )
        self.offset = start + n_bytes
        self.load(self.offset)
        return start

    def load(self, end: int) -> None:
        """Extend `data` to `end`, which is within `size`; far enough ahead that this happens only a few times."""
        have = len(self.data)
        if end > have:
            upto = min(max(end, 2 * have, FIRST_READ), self.size)
            self.data += self.shard.read(have, upto - have).tobytes()

    def scalar(self, code: str) -> Any:
        layout = "<" + code
        start = self.need(struct.calcsize(layout))  # may replace the data
        return struct.unpack_from(layout, self.data, start)[0]

    def string(self) -> str:
        length = self.scalar("Q")
        start = self.need(length)
        return self.decode(self.data[start : start + length])

    def decode(self, raw: bytes) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise FormatError(
                f"{self.name}: {self.inside} is not UTF-8 text: {quoted(raw[:24])}; the file is damaged"
            ) from None

    def claim(self, count: int, min_bytes: int, what: str) -> None:
        """Refuse a count that the rest of the file cannot hold, or that no real file has."""
        possible = min((self.size - self.offset) // min_bytes, MAX_ITEMS - self.items)
        if count > possible:
            raise FormatError(
                f"{self.name}: {self.inside} claims {count:,} {what}, but at most {possible:,} are possible here;"
                " the file is truncated or damaged, download it again"
            )
        self.items += count

    def strings(self, count: int) -> list[str]:
        """An array of strings; this loop takes most of the time of opening a file with a large vocabulary."""
        self.claim(count, 8, "strings")
        data, have, size, offset = self.data, len(self.data), self.size, self.offset
        length_at = struct.Struct("<Q").unpack_from
        raw: list[bytes] = []
        for _ in range(count):
            start = offset + 8
            if have < start <= size:
                self.load(start)
                data, have = self.data, len(self.data)
            offset = start + length_at(data, start - 8)[0] if start <= size else start
            if offset > size:
                break
            if offset > have:
                self.load(offset)
                data, have = self.data, len(self.data)
            raw.append(data[start:offset])
        if len(raw) < count:
            self.inside = f"string {len(raw):,} of {self.inside}"
            self.need(offset - self.offset)  # says what is missing
        self.offset = offset
        try:
            return [item.decode() for item in raw]
        except UnicodeDecodeError:
            return [self.decode(item) for item in raw]  # raises, with a message

    def array(self, depth: int = 1) -> list[Any]:
        kind, count = self.scalar("I"), self.scalar("Q")
        if kind == STRING:
            return self.strings(count)
        if kind == ARRAY:
            if depth == MAX_DEPTH:
                raise FormatError(f"{self.name}: {self.inside} nests arrays more than {MAX_DEPTH} deep; it is damaged")
            self.claim(count, 12, "arrays")
            return [self.array(depth + 1) for _ in range(count)]
        if kind not in SCALARS:
            raise FormatError(f"{self.name}: {self.inside} is an array of unknown type {kind}; the file is damaged")
        dtype = np.dtype("u1" if kind == BOOL else "<" + SCALARS[kind])
        self.claim(count, dtype.itemsize, "numbers")
        start = self.need(count * dtype.itemsize)
        numbers = np.frombuffer(self.data, dtype, count, start)
        return list((numbers != 0).tolist() if kind == BOOL else numbers.tolist())

    def value(self) -> MetaValue:
        kind = self.scalar("I")
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            return self.array()
        if kind not in SCALARS:
            raise FormatError(f"{self.name}: {self.inside} has unknown type {kind}; the file is damaged")
        number: int | float | bool = self.scalar(SCALARS[kind])
        return number


def _new_name(cursor: _Cursor, what: str, known: Container[str]) -> str:
    cursor.inside = f"the name of {what}"
    name = cursor.string()
    if not name or name in known:
        found = f"has '{shown(name)}' twice" if name else "has an empty name"
        raise FormatError(f"{cursor.name}: {what} {found}; the file is damaged")
    return name


def _read_metadata(cursor: _Cursor, count: int, until: str = "") -> dict[str, MetaValue]:
    metadata: dict[str, MetaValue] = {}
    for index in range(count):
        key = _new_name(cursor, f"metadata entry {index:,}", metadata)
        cursor.inside = f"metadata {shown(key)}"
        metadata[key] = cursor.value()
        if key == until:
            break
    return metadata


def _read_tensors(cursor: _Cursor, count: int, alignment: int, shard: int) -> dict[str, TensorInfo]:
    relative: dict[str, TensorInfo] = {}
    for index in range(count):
        name = _new_name(cursor, f"tensor {index:,}", relative)
        relative[name] = _read_tensor(cursor, name, alignment, shard)
    start = -(-cursor.offset // alignment) * alignment
    size = len(cursor.shard)
    _check_groups(cursor.name, relative.values(), size - start)
    short = {info.name: start + info.offset + info.n_bytes - size for info in relative.values()}
    if short and (missing := max(short.values())) > 0:
        first = min((name for name in short if short[name] > 0), key=lambda name: relative[name].offset)
        raise FormatError(
            f"{cursor.name} is truncated: tensor {shown(first)} ends {short[first]:,} bytes past the end, and"
            f" {missing:,} bytes of {size + missing:,} are missing in all; download or copy it again"
        )
    placed = {name: replace(info, offset=start + info.offset) for name, info in relative.items()}
    check_apart(cursor.name, placed.values())
    return placed


def _check_groups(source: str, tensors: Iterable[TensorInfo], size: int) -> None:
    """Refuse Q2_0 with groups of 128, as a fork writes it under the same number: blocks of 34 bytes, so that tensors
    lie nearer to each other than they would with groups of 64. `size`: bytes of all tensors together."""
    placed = sorted(tensors, key=lambda info: info.offset)
    for info, end in zip(placed, [*(after.offset for after in placed[1:]), size]):
        if info.type == "Q2_0" and info.n_elements // 128 * 34 <= end - info.offset < info.n_bytes:
            raise UnsupportedError(
                f"{source}: tensor {shown(info.name)} is stored as Q2_0 with groups of 128 (of the PrismML fork),"
                " expected groups of 64; use the model's file that llama.cpp reads"
            )


def _read_tensor(cursor: _Cursor, name: str, alignment: int, shard: int) -> TensorInfo:
    """One row of the tensor table; the offset is still relative to the data section."""
    cursor.inside = f"the description of tensor {shown(name)}"
    where = f"{cursor.name}: tensor {shown(name)}"
    n_dimensions = cursor.scalar("I")
    if not 1 <= n_dimensions <= MAX_DIMENSIONS:
        raise FormatError(f"{where} has {n_dimensions:,} dimensions, expected 1 to {MAX_DIMENSIONS}")
    dimensions = [cursor.scalar("Q") for _ in range(n_dimensions)]
    if not all(1 <= size < MAX_DIMENSION for size in dimensions):
        raise FormatError(f"{where} has dimensions {dimensions}, expected positive sizes; the file is damaged")
    type_id, offset = cursor.scalar("I"), cursor.scalar("Q")
    kind = SUPPORTED.get(type_id) or (LISTS.get(type_id) if n_dimensions == 1 else None)
    if kind is None:
        found = UNSUPPORTED.get(type_id, f"unknown type {type_id}")
        raise UnsupportedError(
            f"{where} is stored as {found}, expected one of {SUPPORTED_NAMES}; use the model's file in one of those"
            " types, such as Q4_K_M"
        )
    if dimensions[0] % kind.block:
        raise FormatError(
            f"{where} has rows of {dimensions[0]:,} elements, expected a multiple of {kind.block} for {kind.name}"
        )
    if offset % alignment:
        raise FormatError(f"{where} starts at offset {offset:,}, expected a multiple of the alignment {alignment}")
    n_elements = math.prod(dimensions)
    n_bytes = n_elements // kind.block * kind.size
    return TensorInfo(name, tuple(reversed(dimensions)), kind.name, n_bytes, n_elements, shard, offset)


# Other kinds of files that users pass instead of a GGUF file, by their first bytes.
LOOKALIKES = (
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself; run git lfs pull or download the file"),
    (b"PK\x03\x04", "a zip archive, perhaps a PyTorch checkpoint; convert it to GGUF first"),
    (b"FUGG", "a big-endian GGUF file; convert it again for little-endian"),
    (b"tjgg", "a GGML file older than GGUF; convert the model again"),
    (b"lmgg", "a GGML file older than GGUF; convert the model again"),
)


def _not_gguf(path: Path, head: bytes) -> str:
    hint = next((hint for magic, hint in LOOKALIKES if head.startswith(magic)), "")
    if not hint and head.lstrip().lower().startswith((b"<!doctype", b"<html")):
        hint = "a web page; the download saved a login or error page instead of the file"
    if not hint and head[8:9] == b"{" and head[5:8] == b"\0\0\0":
        hint = "a safetensors file; a target must be GGUF, a drafter in this format needs its config.json"
    found = f"{path} is not a GGUF file: it starts with {quoted(head[:8])}, expected 'GGUF'"
    return f"{found}; it looks like {hint}" if hint else f"{found}; check the path or download it again"
